//! Names and secrets: what they are is known, and each stands as a word in place of them.

use std::collections::BTreeSet;
use std::fs;

/// What must not be told, wherever it stands, and what stands there instead. Longer ones come first.
pub(super) struct Hidden(Vec<(String, &'static str)>);

/// In a variable's name: its value is a secret.
const SECRET: [&str; 8] =
    ["KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH", "_PWD", "COOKIE"];

impl Hidden {
    /// Of this user, on this machine.
    pub(super) fn find() -> Self {
        let mut found = BTreeSet::new();
        let uid = rustix::process::getuid().as_raw().to_string();
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let mine = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let mine = mine.filter(|fields| fields.get(2).is_some_and(|field| *field == uid));
        for fields in mine {
            let field = |at: usize| fields.get(at).copied().unwrap_or_default().to_owned();
            found.insert((field(0), "USER"));
            // The full name, room and telephone.
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
        // What everybody is called tells nothing, and would be found everywhere.
        let says_nothing = |text: &str| {
            text.chars().count() < 3
                || matches!(text, "root" | "nobody" | "localhost" | "soft" | "trace")
        };
        let found = found.into_iter().filter(|(text, _)| !says_nothing(text));
        let mut all: Vec<_> = found.flat_map(|(text, i)| written(&text).map(|w| (w, i))).collect();
        all.dedup();
        all.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Self(all)
    }

    /// Without them. A secret goes wherever it stands; a name where it is no part of a longer word.
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

/// As it stands in a report: as it is, in JSON, and among the settings.
fn written(text: &str) -> [String; 3] {
    let json = serde_json::Value::from(text).to_string();
    let inner = json.get(1..json.len() - 1).unwrap_or_default().to_owned();
    [text.to_owned(), inner, text.escape_debug().to_string()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_secrets_are_hidden_and_other_words_stay() {
        let hidden = [
            ("anna", "USER"),
            ("/home/anna", "~"),
            ("node7", "HOST"),
            ("s3cr3t", "SECRET"),
            ("root", "USER"),
            ("", "NAME"),
        ];
        let hidden = Hidden::of(hidden.map(|(text, instead)| (text.to_owned(), instead)));
        assert_eq!(
            hidden.hide("/home/anna/x anna annals hanna node7: node77 xs3cr3tx root"),
            "~/x USER annals hanna HOST: node77 xSECRETx root"
        );
    }
}
