//! Templates: C text with directives, which are lines that begin with `@` and expand to generated
//! definitions.
//!
//! - `@types WORD...`: types, each after its dependencies. A word is a module of the crate
//!   (`device`, `kernel/mr`), a type, or a type to omit (with a minus). A backslash at the end
//!   continues the line. Types used before their definition, or without one, are declared first.
//! - `@kernel-types WORD...`: the same in the kernel's integer types.
//! - `@functions WORD...`: prototypes.
//! - `@enum NAME...`: an enumeration without a tag. A name with a final slash (`opcode/`) stands
//!   for all constants of a module.
//! - `@versions WORD...`: lets the linker take the newest private version of functions.

use crate::Result;
use crate::c::{Definition, function};
use crate::rust::{Abi, Kind};
use std::collections::{BTreeMap, BTreeSet};

/// The version of functions that plugins call in the newest generation.
const PRIVATE: &str = "IBVERBS_PRIVATE_65";

/// Names that the text defines as macros.
pub fn macros(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("define")?;
        rest.trim_start().split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()
    })
}

/// Constants that `@enum` lines name.
pub fn listed_constants(text: &str) -> Vec<String> {
    directives(text)
        .into_iter()
        .filter_map(|line| line.strip_prefix("@enum ").map(str::to_owned))
        .flat_map(|words| words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// The C name of a Rust type.
pub(crate) fn c_name(name: &str) -> &str {
    if name == "compat_ibv_port_attr" { "_compat_ibv_port_attr" } else { name }
}

/// Lines with their continuations.
fn directives(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut open = false;
    for line in text.lines() {
        let (part, continues) = match line.strip_suffix('\\') {
            Some(part) if open || line.starts_with('@') => (part, true),
            _ => (line, false),
        };
        match lines.last_mut().filter(|_| open) {
            Some(last) => last.push_str(part),
            None => lines.push(part.to_owned()),
        }
        open = continues;
    }
    lines
}

/// The header that a template stands for.
///
/// # Errors
/// An unknown word, and its line.
pub fn expand(text: &str, abi: &Abi, definitions: &BTreeMap<String, Definition>) -> Result<String> {
    let mut out = String::new();
    for line in directives(text) {
        let Some((directive, words)) =
            line.strip_prefix('@').map(|l| l.split_once(' ').unwrap_or((l, "")))
        else {
            out.push_str(&line);
            out.push('\n');
            continue;
        };
        let text = match directive {
            "types" => types(&select(abi, words, Kind::Type)?, definitions)?,
            "kernel-types" => {
                kernel_integers(&types(&select(abi, words, Kind::Type)?, definitions)?)
            }
            "functions" => {
                let names = select(abi, words, Kind::Function)?;
                let texts: Vec<_> = names
                    .iter()
                    .filter_map(|n| definitions.get(&function(n)))
                    .map(|d| d.text.clone())
                    .collect();
                texts.join("\n")
            }
            "versions" => select(abi, words, Kind::Function)?
                .iter()
                .map(|name| format!("__asm__(\".symver {name},{name}@{PRIVATE}\");\n"))
                .collect(),
            "enum" => untagged(abi, words)?,
            _ => return Err(format!("no such directive: @{directive}")),
        };
        out.push_str(&text);
    }
    Ok(out)
}

/// The C names that the words select, in the order of the crate.
fn select(abi: &Abi, words: &str, kind: Kind) -> Result<Vec<String>> {
    let (mut wanted, mut unwanted) = (BTreeSet::new(), BTreeSet::new());
    for word in words.split_whitespace() {
        let (name, set) = match word.strip_prefix('-') {
            Some(name) => (name, &mut unwanted),
            None => (word, &mut wanted),
        };
        if !abi.entries.iter().any(|e| e.kind == kind && (e.module == name || e.name == name)) {
            return Err(format!("no such module or item in abi: {name}"));
        }
        set.insert(name);
    }
    let has =
        |set: &BTreeSet<&str>, module: &str, name: &str| set.contains(module) || set.contains(name);
    Ok(abi
        .entries
        .iter()
        .filter(|e| e.kind == kind && has(&wanted, &e.module, &e.name))
        .filter(|e| !has(&unwanted, &e.module, &e.name))
        .map(|e| c_name(&e.name).to_owned())
        .filter(|name| !crate::names::IN_PLACE.contains(&name.as_str()))
        .collect())
}

fn untagged(abi: &Abi, words: &str) -> Result<String> {
    let mut text = String::from("enum {\n");
    for word in words.split_whitespace() {
        let module = word.strip_suffix('/');
        let before = text.len();
        for constant in &abi.constants {
            if Some(constant.module.as_str()) == module || constant.name == word {
                text.push_str(&format!("\t{} = {},\n", constant.name, constant.written));
            }
        }
        if text.len() == before {
            return Err(format!("no such constant in abi: {word}"));
        }
    }
    text.push_str("};\n");
    Ok(text)
}

/// The definitions, each after its dependencies, and declarations in front.
fn types(names: &[String], definitions: &BTreeMap<String, Definition>) -> Result<String> {
    let mut ordered = Vec::new();
    let mut open = BTreeSet::new();
    for name in names {
        place(name, names, definitions, &mut open, &mut ordered)?;
    }
    let mut defined = BTreeSet::new();
    let mut declared = Vec::new();
    for name in &ordered {
        let Some(definition) = definitions.get(name) else { continue };
        for (keyword, other, pointer) in mentions(&definition.text) {
            let new = pointer
                && other != *name
                && !defined.contains(&other)
                && !declared.contains(&(keyword.clone(), other.clone()));
            if new && keyword != "enum" {
                declared.push((keyword, other));
            }
        }
        defined.insert(name.clone());
    }
    let mut out: String =
        declared.iter().map(|(keyword, name)| format!("{keyword} {name};\n")).collect();
    for name in &ordered {
        if !out.is_empty() {
            out.push('\n');
        }
        if let Some(definition) = definitions.get(name) {
            out.push_str(&definition.text);
        }
    }
    Ok(out)
}

/// Depth first: a definition's parts precede the definition.
fn place(
    name: &str,
    names: &[String],
    definitions: &BTreeMap<String, Definition>,
    open: &mut BTreeSet<String>,
    ordered: &mut Vec<String>,
) -> Result<()> {
    if ordered.iter().any(|n| n == name) || !open.insert(name.to_owned()) {
        return Ok(());
    }
    let definition = definitions.get(name).ok_or(format!("{name} has no definition in C"))?;
    for (keyword, other, pointer) in mentions(&definition.text) {
        if (keyword == "enum" || !pointer) && other != name && names.contains(&other) {
            place(&other, names, definitions, open, ordered)?;
        }
    }
    ordered.push(name.to_owned());
    Ok(())
}

/// The tagged types in a text: keyword, name, and whether the use is a pointer.
fn mentions(text: &str) -> Vec<(String, String, bool)> {
    let code: String = text
        .split("/*")
        .enumerate()
        .map(
            |(i, part)| {
                if i == 0 { part } else { part.split_once("*/").map_or("", |(_, code)| code) }
            },
        )
        .collect();
    let words: Vec<_> = code.split_whitespace().collect();
    words
        .windows(3)
        .filter_map(|window| {
            let [keyword, name, next] = window else { return None };
            let keyword = keyword.trim_start_matches(['(', '*']);
            let keyword = keyword.rsplit('(').next().unwrap_or(keyword);
            if !matches!(keyword, "struct" | "union" | "enum") || *name == "{" {
                return None;
            }
            Some((
                keyword.to_owned(),
                name.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_').to_owned(),
                next.starts_with('*') || next.starts_with("(*"),
            ))
        })
        .collect()
}

/// `uint64_t` is `unsigned long` to a C library and `unsigned long long` to the kernel: the same
/// bits, another type.
fn kernel_integers(text: &str) -> String {
    [
        ("uint8_t", "__u8"),
        ("uint16_t", "__u16"),
        ("uint32_t", "__u32"),
        ("int32_t", "__s32"),
        ("int ", "__s32 "),
        ("uint64_t", "__aligned_u64"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (c, kernel)| {
        text.replace(&format!("\t{c}"), &format!("\t{kernel}"))
    })
}
