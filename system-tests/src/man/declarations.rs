//! Enough of C's grammar to compare structures and enumerations of preprocessed headers with those
//! of manual pages.

use std::collections::BTreeMap;

/// A member of a structure with its path and type, or an enumerator with its value if given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// `wr.rdma.remote_addr: uint64_t`, `IBV_X = 1 << 3`.
    pub(super) text: String,
    /// The page says that older releases lack the member.
    pub(super) newer: bool,
}

impl Member {
    /// What is compared as text; how numbers are written may differ.
    pub(super) fn without_numbers(&self) -> &str {
        let end = self.text.find(" = ").or_else(|| self.text.find('[').map(|at| at + 1));
        end.and_then(|end| self.text.get(..end)).unwrap_or(&self.text)
    }

    /// The length of an array.
    pub(super) fn bound(&self) -> Option<&str> {
        self.text.strip_suffix(']')?.split_once('[').map(|(_, bound)| bound)
    }
}

/// Members of everything that is declared with a tag, by `struct name`, `union name`, `enum name`.
pub(super) type Declarations = BTreeMap<String, Vec<Member>>;

/// What the marker comment of a page becomes: no C token.
const NEWER: &str = "@";

/// Splits C into tokens without attributes and comments. `/* since ... */` stays as [`NEWER`].
pub(super) fn tokens(text: &str) -> Vec<String> {
    let mut found = all_tokens(text);
    while let Some(at) = found.iter().position(|t| t == "__attribute__") {
        let mut depth = 0;
        let end = found.iter().enumerate().skip(at + 1).find_map(|(n, token)| {
            depth += i32::from(token == "(") - i32::from(token == ")");
            (depth == 0).then_some(n)
        });
        found.drain(at..=end.unwrap_or(at));
    }
    found
}

fn all_tokens(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let len = if rest.starts_with("/*") {
            let len = rest.find("*/").map_or(rest.len(), |at| at + 2);
            if rest.get(..len).is_some_and(|comment| comment.contains("since ")) {
                found.push(NEWER.to_string());
            }
            rest = rest.get(len..).unwrap_or_default();
            continue;
        } else if rest.starts_with('#') {
            rest.find('\n').unwrap_or(rest.len())
        } else if c.is_alphanumeric() || c == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if let Some(string) = rest.strip_prefix('"') {
            string.find('"').map_or(rest.len(), |at| at + 2)
        } else {
            c.len_utf8()
        };
        let (token, after) = rest.split_at(len);
        if !c.is_whitespace() && c != '#' {
            found.push(token.to_string());
        }
        rest = after;
    }
    found
}

/// All tagged declarations of a text, nested ones also under their own names; words in `renames`
/// are replaced.
pub(super) fn declarations(text: &str, renames: &BTreeMap<String, String>) -> Declarations {
    let mut tokens = tokens(text);
    for token in &mut tokens {
        if let Some(new) = renames.get(token) {
            token.clone_from(new);
        }
    }
    let mut found = Declarations::new();
    for at in 0..tokens.len() {
        if let Some([kind, tag, brace]) = tokens.get(at..at + 3)
            && brace == "{"
            && matches!(kind.as_str(), "struct" | "union" | "enum")
        {
            let body = body(&tokens, at + 2);
            let members = if kind == "enum" { enumerators(body) } else { members(body, "") };
            found.insert(format!("{kind} {tag}"), members);
        }
    }
    found
}

/// The tokens between the brace at `open` and its partner.
fn body(tokens: &[String], open: usize) -> &[String] {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return tokens.get(open + 1..at).unwrap_or_default();
        }
    }
    &[]
}

fn enumerators(body: &[String]) -> Vec<Member> {
    let mut found: Vec<Member> = Vec::new();
    let (mut current, mut depth) = (Vec::new(), 0);
    let finish = |current: &mut Vec<&str>, found: &mut Vec<Member>| {
        if !current.is_empty() {
            found.push(Member { text: current.join(" "), newer: false });
            current.clear();
        }
    };
    for token in body {
        match token.as_str() {
            NEWER => {
                finish(&mut current, &mut found);
                found.last_mut().map(|last| last.newer = true).unwrap_or_default();
                continue;
            }
            "," if depth == 0 => {
                finish(&mut current, &mut found);
                continue;
            }
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        current.push(token);
    }
    finish(&mut current, &mut found);
    found
}

fn members(body: &[String], path: &str) -> Vec<Member> {
    let mut found: Vec<Member> = Vec::new();
    let mut at = 0;
    while at < body.len() {
        if body[at] == NEWER {
            found.last_mut().map(|last| last.newer = true).unwrap_or_default();
            at += 1;
            continue;
        }
        let end =
            at + body[at..].iter().position(|t| t == ";" || t == "{").unwrap_or(body.len() - at);
        if body.get(end).is_some_and(|t| t == "{") {
            let inner = self::body(body, end);
            let close = end + inner.len() + 1;
            let named = body.get(close + 1).filter(|t| *t != ";");
            let path = match named {
                Some(name) => format!("{path}{name}."),
                None => path.to_string(),
            };
            found.extend(members(inner, &path));
            at = close + 2 + usize::from(named.is_some());
            continue;
        }
        found.push(Member { text: member(&body[at..end], path), newer: false });
        at = end + 1;
    }
    found
}

/// A member as `path: type`; a function pointer keeps the types of its parameters, without names.
fn member(tokens: &[String], path: &str) -> String {
    let words: Vec<&str> = tokens.iter().map(String::as_str).collect();
    if let Some(at) = words.windows(2).position(|two| two == ["(", "*"]) {
        let (result, rest) = words.split_at(at);
        let name = rest.get(2).copied().unwrap_or_default();
        let list = rest.get(5..rest.len().saturating_sub(1)).unwrap_or_default();
        let parameters: Vec<_> = list.split(|t| *t == ",").map(without_name).collect();
        return format!("{path}{name}: {} (*)({})", result.join(" "), parameters.join(", "));
    }
    let at = words.iter().position(|t| *t == "[").unwrap_or(words.len());
    let (front, array) = words.split_at(at);
    let (name, kind) = front.split_last().unwrap_or((&"", &[]));
    format!("{path}{name}: {} {}", kind.join(" "), array.concat()).trim_end().to_string()
}

/// A parameter's type, without its name.
fn without_name(parameter: &[&str]) -> String {
    let is_name = |last: &&str| last.starts_with(|c: char| c.is_alphabetic() || c == '_');
    match parameter.split_last() {
        Some((last, kind)) if kind.len() > 1 && is_name(last) && kind != ["struct"] => {
            kind.join(" ")
        }
        Some((last, kind))
            if kind.len() == 1 && is_name(last) && kind != ["struct"] && kind != ["enum"] =>
        {
            kind.join(" ")
        }
        _ => parameter.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str, name: &str) -> Vec<String> {
        declarations(text, &BTreeMap::new())[name].iter().map(|m| m.text.clone()).collect()
    }

    #[test]
    fn members_are_flattened_with_their_paths() {
        let text = "struct s { int a; /* of a */ struct s *next; union { struct { uint64_t x; } rdma; int b[4]; } wr; \
                    union { int c; }; int (*f)(struct s *s, int n); u64 __attribute__((aligned(8))) d; };";
        assert_eq!(
            texts(text, "struct s"),
            [
                "a: int",
                "next: struct s *",
                "wr.rdma.x: uint64_t",
                "wr.b: int [4]",
                "c: int",
                "f: int (*)(struct s *, int)",
                "d: u64",
            ]
        );
    }

    #[test]
    fn numbers_are_left_to_the_compiler() {
        let array = Member { text: "name: char [64]".into(), newer: false };
        assert_eq!((array.without_numbers(), array.bound()), ("name: char [", Some("64")));
        let value = Member { text: "A = 1".into(), newer: false };
        assert_eq!((value.without_numbers(), value.bound()), ("A", None));
    }

    #[test]
    fn a_marked_member_is_newer() {
        let none = BTreeMap::new();
        let found =
            declarations("enum e { A = (1 << 1), /* since 59 */\n B, C /* since 64 */ };", &none);
        let newer: Vec<_> = found["enum e"].iter().map(|m| (m.text.as_str(), m.newer)).collect();
        assert_eq!(newer, [("A = ( 1 < < 1 )", true), ("B", false), ("C", true)]);
        let found = declarations("struct s { int a; int b; /* since 49 */ };", &none);
        let newer: Vec<_> = found["struct s"].iter().map(|m| m.newer).collect();
        assert_eq!(newer, [false, true]);
    }
}
