//! Declarations of headers, read from a compiler's preprocessor output: enough C syntax to separate
//! declarations.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Names and their declarations, as tokens with single spaces between.
#[derive(Debug, Default)]
pub(crate) struct Api {
    pub(crate) macros: BTreeMap<String, String>,
    /// With return type and parameters; `static inline` counts.
    pub(crate) functions: BTreeMap<String, String>,
    /// `struct ibv_qp`: members in order. Of enumerations the names only.
    pub(crate) types: BTreeMap<String, String>,
    /// The tag of the enumeration they are in.
    pub(crate) enumerators: BTreeMap<String, String>,
}

impl Api {
    /// Of these headers below `include`, or below the system's.
    pub(crate) fn read(headers: &[&str], include: Option<&Path>) -> Self {
        let mut api = Self::default();
        let mut text = String::new();
        for line in declared(headers, include) {
            match line.strip_prefix("#define ") {
                Some(definition) => api.add_macro(definition),
                None if line.starts_with('#') => {}
                None => {
                    text.push_str(&line);
                    text.push('\n');
                }
            }
        }
        let tokens = tokens(&text);
        api.add_declarations(&tokens);
        api
    }

    pub(crate) fn count(&self) -> String {
        let [m, f, t, e] =
            [self.macros.len(), self.functions.len(), self.types.len(), self.enumerators.len()];
        format!("{m} macros, {f} functions, {t} types, {e} enumerators")
    }

    fn add_macro(&mut self, definition: &str) {
        let end = definition
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(definition.len());
        let (name, text) = definition.split_at(end);
        // Guards belong to no interface, and a macro that is undefined at the end does not exist.
        if !name.ends_with("_H") && name != "__attribute_const" {
            let plain = tokens(text).join(" ").replace(" ( ( int ) ( access ) ", " ( ( access ) ");
            self.macros.insert(name.to_owned(), plain);
        }
    }

    /// Declarations at the outermost level: tokens up to a semicolon, or to the end of a function
    /// body.
    fn add_declarations(&mut self, tokens: &[String]) {
        let mut begin = 0;
        let (mut depth, mut parentheses) = (0, 0);
        for (at, token) in tokens.iter().enumerate() {
            match token.as_str() {
                "(" => parentheses += 1,
                ")" => parentheses -= 1,
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    let next = tokens.get(at + 1).map(String::as_str);
                    if depth == 0 && next != Some(";") {
                        self.add(&tokens[begin..=at]);
                        begin = at + 1;
                    }
                }
                ";" if depth == 0 && parentheses == 0 => {
                    self.add(&tokens[begin..at]);
                    begin = at + 1;
                }
                _ => {}
            }
        }
    }

    fn add(&mut self, tokens: &[String]) {
        let words: Vec<&str> = tokens.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["enum", "{", body @ .., "}"] => self.add_enumerators("", body),
            ["enum", tag, "{", body @ .., "}"] => {
                self.types.insert(format!("enum {tag}"), String::new());
                self.add_enumerators(tag, body);
            }
            [keyword @ ("struct" | "union"), tag, "{", body @ .., "}"] => {
                self.types.insert(format!("{keyword} {tag}"), members(body));
            }
            // Declared only, or without a name.
            ["struct" | "union" | "enum", _] | [] => {}
            _ => {
                let Some(open) = words.iter().position(|word| *word == "(") else {
                    panic!("what is this? {words:?}")
                };
                let name = words[open - 1];
                let end = words.iter().position(|word| *word == "{").unwrap_or(words.len());
                self.functions.insert(name.to_owned(), words[..end].join(" "));
            }
        }
    }

    fn add_enumerators(&mut self, tag: &str, body: &[&str]) {
        for part in body.split(|word| *word == ",") {
            if let Some(name) = part.first() {
                self.enumerators.insert((*name).to_owned(), tag.to_owned());
            }
        }
    }
}

/// Array sizes are numbers in one header and names in the other.
fn members(body: &[&str]) -> String {
    body.join(" ")
        .replace("IBV_SYSFS_NAME_MAX", "64")
        .replace("IBV_SYSFS_PATH_MAX", "256")
        .replace("[ 256 / 32 ]", "[ 8 ]")
}

/// Lines that come from these headers themselves, macro definitions included.
fn declared(headers: &[&str], include: Option<&Path>) -> Vec<String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let stem = format!("api-{}", include.map_or(0, |path| path.as_os_str().len()));
    let source = folder.join(format!("{stem}-{:?}.c", std::thread::current().id()));
    let text: String = headers.iter().map(|header| format!("#include <{header}>\n")).collect();
    fs::write(&source, text).expect("cargo's folder is writable");
    let mut command = Command::new("gcc");
    command.args(["-E", "-dD"]).arg(&source);
    if let Some(include) = include {
        command.arg("-isystem").arg(include);
    }
    let output = command.output().expect("gcc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut inside = false;
    let mut lines = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some(marker) = line.strip_prefix("# ") {
            let file = marker.split('"').nth(1).unwrap_or_default();
            inside = headers.iter().any(|header| file.ends_with(&format!("/{header}")));
        } else if inside {
            lines.push(line.to_owned());
        }
    }
    lines
}

/// Names, numbers and signs, without attributes, extensions, and braces of `extern "C"`.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    for c in text.chars().chain(['\n']) {
        if c.is_ascii_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        if !word.is_empty() {
            tokens.push(std::mem::take(&mut word));
        }
        if !c.is_whitespace() && c != '\\' {
            tokens.push(c.to_string());
        }
    }
    let mut kept: Vec<String> = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "__extension__" => {}
            "__attribute__" => {
                let mut depth = 0;
                loop {
                    at += 1;
                    match tokens.get(at).map(String::as_str) {
                        Some("(") => depth += 1,
                        Some(")") if depth == 1 => break,
                        Some(")") => depth -= 1,
                        None => break,
                        _ => {}
                    }
                }
            }
            _ => kept.push(token.clone()),
        }
        at += 1;
    }
    kept
}
