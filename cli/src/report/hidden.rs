//! Replaces names and secrets in a report by words such as USER and SECRET.

use std::collections::BTreeSet;
use std::fs;

/// Texts to replace, with their replacements. Longer texts come first.
pub(super) struct Redactions(Vec<(String, &'static str)>);

/// Words in the name of a variable whose value is a secret.
const SECRET: [&str; 8] =
    ["KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH", "_PWD", "COOKIE"];

impl Redactions {
    /// The names of this user and this machine, and the secrets of the environment.
    pub(super) fn find() -> Self {
        let mut found = BTreeSet::new();
        let uid = rustix::process::getuid().as_raw().to_string();
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let mine = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let mine = mine.filter(|fields| fields.get(2).is_some_and(|field| *field == uid));
        for fields in mine {
            let field = |at: usize| fields.get(at).copied().unwrap_or_default().to_owned();
            found.insert((field(0), "USER"));
            // The field has the full name, the room and telephone numbers.
            found.extend(field(4).split(',').map(|part| (part.to_owned(), "NAME")));
            found.insert((field(5), "~"));
        }
        for (name, value) in std::env::vars_os() {
            let (name, value) =
                (name.to_string_lossy().to_ascii_uppercase(), value.to_string_lossy());
            let instead = match name.as_str() {
                "USER" | "LOGNAME" | "SUDO_USER" => "USER",
                "HOME" => "~",
                "HOSTNAME" => "HOST",
                name if SECRET.iter().any(|word| name.contains(word)) => "SECRET",
                _ => continue,
            };
            found.insert((value.into_owned(), instead));
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let short = host.split('.').next().unwrap_or_default().to_owned();
        found.extend([(host, "HOST"), (short, "HOST")]);
        Self::of(found)
    }

    fn of(found: impl IntoIterator<Item = (String, &'static str)>) -> Self {
        // Common words reveal nothing and would be replaced everywhere.
        let is_common = |text: &str| {
            text.chars().count() < 3
                || matches!(text, "root" | "nobody" | "localhost" | "soft" | "trace")
        };
        let found = found.into_iter().filter(|(text, _)| !is_common(text));
        let mut all: Vec<_> =
            found.flat_map(|(text, i)| notations(&text).map(|w| (w, i))).collect();
        all.dedup();
        all.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Self(all)
    }

    /// Replaces secrets everywhere, and names unless they are part of a longer word.
    pub(super) fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (hidden, instead) in &self.0 {
            let mut clean = String::with_capacity(text.len());
            let mut rest = text.as_str();
            while let Some(at) = rest.find(hidden.as_str()) {
                let (before, found) = rest.split_at(at);
                let after = found.get(hidden.len()..).unwrap_or_default();
                let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                let previous = before.chars().next_back().or(clean.chars().next_back());
                let is_part = is_word(previous) || is_word(after.chars().next());
                clean.push_str(before);
                clean.push_str(if is_part && *instead != "SECRET" { hidden } else { instead });
                rest = after;
            }
            clean.push_str(rest);
            text = clean;
        }
        text
    }
}

/// The notations of a text in a report: plain, in JSON, and in the list of settings.
fn notations(text: &str) -> [String; 3] {
    let json = serde_json::Value::from(text).to_string();
    let inner = json.get(1..json.len() - 1).unwrap_or_default().to_owned();
    [text.to_owned(), inner, text.escape_debug().to_string()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_secrets_are_replaced() {
        let hidden = [
            ("anna", "USER"),
            ("/home/anna", "~"),
            ("node7", "HOST"),
            ("s3cr3t", "SECRET"),
            ("root", "USER"),
            ("", "NAME"),
        ];
        let hidden = Redactions::of(hidden.map(|(text, instead)| (text.to_owned(), instead)));
        assert_eq!(
            hidden.hide("/home/anna/x anna annals hanna node7: node77 xs3cr3tx root"),
            "~/x USER annals hanna HOST: node77 xSECRETx root"
        );
    }
}
