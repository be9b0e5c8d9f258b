//! Splits cbindgen's output into definitions by name. The template then places each definition at
//! its position in a header.

use crate::names::{self, IN_PLACE, TAGGED, UNNAMED, WRAPPED};
use crate::rust::{Abi, Kind};
use crate::{Result, template};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A definition or prototype in C.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// `enum`, `struct`, `union`, or empty for a prototype.
    pub keyword: String,
    /// Without the tag's keyword.
    pub name: String,
    /// Comment and text, ended by a newline.
    pub text: String,
}

impl Definition {
    /// The key among all definitions: types and functions may share a name.
    fn key(&self) -> String {
        if self.keyword.is_empty() { function(&self.name) } else { self.name.clone() }
    }
}

/// The name of a function among all definitions.
pub fn function(name: &str) -> String {
    format!("{name}()")
}

/// All definitions of the crate, by their C names; functions as [`function`] writes them.
///
/// # Errors
/// The error text of cbindgen.
pub fn definitions(abi: &Abi, settings: &Path) -> Result<BTreeMap<String, Definition>> {
    let written = cbindgen(abi, settings)?;
    let mut definitions: BTreeMap<String, Definition> =
        split(&written)?.into_iter().map(|definition| (definition.key(), definition)).collect();
    for entry in &abi.entries {
        let key = match entry.kind {
            Kind::Type => template::c_name(&entry.name).to_owned(),
            Kind::Function => function(&entry.name),
        };
        if !definitions.contains_key(&key) {
            return Err(format!(
                "cbindgen did not write {} of abi/src/{}.rs",
                entry.name, entry.module
            ));
        }
    }
    put_in_place(&mut definitions)?;
    for definition in definitions.values_mut() {
        finish(definition);
    }
    Ok(definitions)
}

/// Runs cbindgen over the entries as one file.
fn cbindgen(abi: &Abi, settings: &Path) -> Result<String> {
    let folder = std::env::temp_dir().join(format!("ferroverbs-headers-{}", std::process::id()));
    let file = folder.join("abi.rs");
    let source: String = abi.entries.iter().map(|entry| format!("{}\n", entry.source)).collect();
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&file, source))
        .map_err(|error| format!("{}: {error}", file.display()))?;
    let mut config = cbindgen::Config::from_file(settings)?;
    config.export.include = abi.entries.iter().map(|entry| entry.name.clone()).collect();
    let bindings = cbindgen::Builder::new().with_config(config).with_src(&file).generate();
    let _ = fs::remove_dir_all(&folder);
    let mut text = Vec::new();
    bindings.map_err(|error| error.to_string())?.write(&mut text);
    String::from_utf8(text).map_err(|error| error.to_string())
}

/// Cuts at empty lines between definitions.
fn split(text: &str) -> Result<Vec<Definition>> {
    let mut definitions = Vec::new();
    for part in
        text.split("\n\n").map(|part| part.trim_matches('\n')).filter(|part| !part.is_empty())
    {
        let code_at = part.find("*/\n").filter(|_| part.starts_with("/*")).map_or(0, |at| at + 3);
        let code = &part[code_at..];
        let mut words = code.split_whitespace();
        let first = words.next().unwrap_or_default();
        let second = words.next().unwrap_or_default();
        if matches!(first, "enum" | "struct" | "union")
            && code.lines().next().is_some_and(|l| l.ends_with('{'))
        {
            definitions.push(Definition {
                keyword: first.to_owned(),
                name: second.trim_end_matches('{').to_owned(),
                text: format!("{part}\n"),
            });
        } else if first == "extern" {
            let before = code.split('(').next().unwrap_or_default();
            let name = before.rsplit([' ', '*', '\n']).next().unwrap_or_default().to_owned();
            let text = part.replacen("extern ", "", 1) + "\n";
            definitions.push(Definition { keyword: String::new(), name, text });
        } else if first == "struct" && code.ends_with(';') {
            // An opaque type; templates declare it where other definitions mention it.
        } else {
            return Err(format!("cbindgen wrote what nobody expected: {part}"));
        }
    }
    Ok(definitions)
}

/// Replaces members whose types have no name in C by the types' text.
fn put_in_place(definitions: &mut BTreeMap<String, Definition>) -> Result<()> {
    // Innermost first: insert a type once its own members are complete.
    let mut waiting: Vec<&str> = IN_PLACE.to_vec();
    let mut bodies: BTreeMap<String, (String, String)> = BTreeMap::new();
    while !waiting.is_empty() {
        let before = waiting.len();
        let mut later = Vec::new();
        for name in waiting {
            let definition = definitions.get(name).ok_or(format!("abi has no {name}"))?;
            let mentions = |other: &str| member_of(&definition.text, other).is_some();
            if IN_PLACE.iter().any(|other| !bodies.contains_key(*other) && mentions(other)) {
                later.push(name);
                continue;
            }
            let text = replace_members(&definition.text, name, &bodies);
            bodies.insert(name.to_owned(), (definition.keyword.clone(), body(&text)));
        }
        if later.len() == before {
            return Err(format!("in each other's place: {}", later.join(" ")));
        }
        waiting = later;
    }
    for name in IN_PLACE {
        definitions.remove(*name);
    }
    for definition in definitions.values_mut() {
        definition.text = replace_members(&definition.text, &definition.name, &bodies);
        if WRAPPED.contains(&definition.name.as_str()) {
            let inner = indented(&body(&definition.text));
            let head = format!("union {} {{\n", definition.name);
            let (comment, _) = definition
                .text
                .split_once(&head)
                .ok_or(format!("{} is no union", definition.name))?;
            definition.text = format!(
                "{comment}__extension__ struct {} {{\n\t__extension__ union {{\n{inner}\t}};\n}};\n",
                definition.name
            );
            definition.keyword = "struct".to_owned();
        }
    }
    let wrapped = |text: &str| {
        WRAPPED.iter().fold(text.to_owned(), |text, name| {
            text.replace(&format!("union {name} "), &format!("struct {name} "))
        })
    };
    for definition in definitions.values_mut() {
        definition.text = wrapped(&definition.text);
    }
    Ok(())
}

/// The line that declares a member of this type by value, and the member's name.
fn member_of<'a>(text: &'a str, of: &str) -> Option<(&'a str, &'a str)> {
    text.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, name, member] = words.as_slice() else { return None };
        (*name == of && member.ends_with(';')).then(|| (line, member.trim_end_matches(';')))
    })
}

fn replace_members(text: &str, of: &str, bodies: &BTreeMap<String, (String, String)>) -> String {
    let mut text = text.to_owned();
    for (name, (keyword, body)) in bodies {
        while let Some((line, member)) = member_of(&text, name) {
            let unnamed = UNNAMED.contains(&(of, member));
            let extension = if unnamed { "__extension__ " } else { "" };
            let member = if unnamed { String::new() } else { format!(" {member}") };
            let new = format!("\t{extension}{keyword} {{\n{}\t}}{member};", indented(body));
            text = text.replacen(line, &new, 1);
        }
    }
    text
}

/// The lines between the braces.
fn body(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let begin = lines
        .iter()
        .position(|line| line.ends_with('{') && !line.starts_with([' ', '\t']))
        .map_or(0, |at| at + 1);
    let end = lines.iter().rposition(|line| *line == "};").unwrap_or(lines.len());
    lines.get(begin..end).unwrap_or_default().iter().map(|line| format!("{line}\n")).collect()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("\t{line}\n")).collect()
}

/// Tabs, C's spelling, and what a compiler has to be told to be quiet about.
fn finish(definition: &mut Definition) {
    let mut text = String::new();
    for line in definition.text.lines() {
        let mut rest = line;
        while let Some(shorter) = rest.strip_prefix("        ").or_else(|| rest.strip_prefix('\t'))
        {
            text.push('\t');
            rest = shorter;
        }
        text.push_str(&words(rest));
        text.push('\n');
    }
    for (function, pointer, array) in names::ARRAYS {
        if definition.name == *function {
            text = text.replace(pointer, array);
        }
    }
    // An enumerator beyond int; a pedantic compiler accepts it only as an extension.
    if definition.keyword == "enum" && text.contains("= 0x8") {
        text = text.replacen("\nenum ", "\n__extension__ enum ", 1);
    }
    definition.text = comments(&text);
}

/// Replaces whole words.
fn words(line: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for c in line.chars().chain(std::iter::once('\n')) {
        if c.is_ascii_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        if let Some((_, keyword)) = TAGGED.iter().find(|(name, _)| *name == word)
            && !out.ends_with(&format!("{keyword} "))
        {
            out.push_str(keyword);
            out.push(' ');
        }
        if word.parse::<i64>().is_ok_and(|number| number > i64::from(i32::MAX)) {
            word = format!("{:#x}", word.parse::<i64>().unwrap_or_default());
        }
        out.push_str(names::spelling(&word));
        word.clear();
        if c != '\n' {
            out.push(c);
        }
    }
    out
}

/// Formats comments: a short comment takes one line; lines of longer comments begin with a star.
fn comments(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let mut out = String::new();
    let mut inside = false;
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        let code = line.trim_start_matches('\t');
        let indent = &line[..line.len() - code.len()];
        let (next, after) = (lines.get(at + 1), lines.get(at + 2));
        if let (Some(next), Some(after)) = (next, after)
            && code == "/*"
            && after.trim() == "*/"
        {
            out.push_str(&format!("{indent}/* {} */\n", next.trim()));
            at += 3;
            continue;
        }
        match code.trim() {
            "*/" => {
                out.push_str(&format!("{indent} */\n"));
                inside = false;
            }
            words if inside => out.push_str(format!("{indent} * {words}").trim_end()),
            _ => out.push_str(line),
        }
        inside |= code == "/*";
        if !out.ends_with('\n') {
            out.push('\n');
        }
        at += 1;
    }
    out
}
