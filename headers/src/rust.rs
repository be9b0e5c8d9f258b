//! The items of the `abi` crate, rewritten for cbindgen. The first step of the generation; `c.rs`
//! passes the rewritten items to cbindgen.

use crate::value::{evaluate, written};
use crate::{Result, names};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, ForeignItem, Item, Type};

/// A definition of the crate that has a place in C headers.
#[derive(Clone, Debug)]
pub struct Entry {
    /// `device` for `abi/src/device.rs`, `kernel/mr` for `abi/src/kernel/mr.rs`.
    pub module: String,
    /// The Rust name.
    pub name: String,
    /// The kind of the definition.
    pub kind: Kind,
    /// The Rust text for cbindgen.
    pub source: String,
}

/// Kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Structure, union or enumeration.
    Type,
    /// Function.
    Function,
}

/// The crate as far as C can see it.
#[derive(Clone, Debug, Default)]
pub struct Abi {
    /// In the order of the sources.
    pub entries: Vec<Entry>,
    /// All integer constants: module, name, value, and how C writes it.
    pub constants: Vec<Constant>,
}

/// An integer constant.
#[derive(Clone, Debug)]
pub struct Constant {
    /// As in [`Entry`].
    pub module: String,
    /// The same in C.
    pub name: String,
    /// What it is.
    pub value: i128,
    /// How C writes it.
    pub written: String,
    /// The constant's type: an alias or a primitive type.
    pub of: String,
}

/// Reads the crate at `source`. Names in `macros` are macros in C, and constants in `listed` belong
/// to enumerations without a tag: neither are enumerators of their type.
///
/// # Errors
/// The unreadable file and the error.
pub fn read(source: &Path, macros: &BTreeSet<String>, listed: &BTreeSet<String>) -> Result<Abi> {
    let mut items = Vec::new();
    read_module(source, &source.join("lib.rs"), "", &mut items)?;
    let mut abi = Abi::default();
    let mut values = BTreeMap::new();
    for (module, item) in &items {
        if let Item::Const(item) = item
            && let Some(value) = evaluate(&item.expr, &values)
        {
            let name = item.ident.to_string();
            values.insert(name.clone(), value);
            abi.constants.push(Constant {
                module: module.clone(),
                written: written(&item.expr, value),
                of: last_segment(&item.ty).unwrap_or_default(),
                name,
                value,
            });
        }
    }
    let mut rewrite = Rewrite { aliases: plain_aliases(&items, &abi) };
    for (module, mut item) in items {
        let entry =
            |name: String, kind, source| Entry { module: module.clone(), name, kind, source };
        match &mut item {
            Item::Type(alias) => {
                let name = alias.ident.to_string();
                let enumerators = enumerators(&abi, &name, macros, listed);
                if enumerators.is_empty() || macros.contains(&name) {
                    continue;
                }
                let docs = documentation(&alias.attrs);
                let source = format!("{docs}#[repr(C)] pub enum {name} {{ {enumerators} }}");
                abi.entries.push(entry(name, Kind::Type, source));
            }
            Item::Struct(item) => {
                rewrite.visit_item_struct_mut(item);
                let name = item.ident.to_string();
                abi.entries.push(entry(name, Kind::Type, item.to_token_stream().to_string()));
            }
            Item::Union(item) => {
                rewrite.visit_item_union_mut(item);
                let name = item.ident.to_string();
                abi.entries.push(entry(name, Kind::Type, item.to_token_stream().to_string()));
            }
            Item::ForeignMod(block) => {
                for function in &mut block.items {
                    let ForeignItem::Fn(function) = function else { continue };
                    rewrite.visit_foreign_item_fn_mut(function);
                    let name = function.sig.ident.to_string();
                    let source = format!("extern \"C\" {{ {} }}", function.to_token_stream());
                    abi.entries.push(entry(name, Kind::Function, source));
                }
            }
            _ => {}
        }
    }
    Ok(abi)
}

/// The crate's types and integer constants as one file without dependencies, for comparison with C
/// (ctest); and the names of the items by module.
///
/// # Errors
/// The unreadable file and the error.
pub fn flat(source: &Path) -> Result<(String, BTreeMap<String, BTreeSet<String>>)> {
    let mut items = Vec::new();
    read_module(source, &source.join("lib.rs"), "", &mut items)?;
    let mut text =
        String::from("use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};\n");
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, mut item) in items {
        let keep = |attribute: &Attribute| {
            attribute.path().is_ident("repr") || attribute.path().is_ident("derive")
        };
        let name = match &mut item {
            Item::Type(alias) => {
                alias.attrs.clear();
                alias.ident.to_string()
            }
            Item::Const(item) if matches!(*item.ty, Type::Path(_)) && item.ident != "_" => {
                item.attrs.clear();
                item.ident.to_string()
            }
            Item::Struct(item) => {
                item.attrs.retain(keep);
                item.fields.iter_mut().for_each(|field| field.attrs.clear());
                item.ident.to_string()
            }
            Item::Union(item) => {
                item.attrs.retain(keep);
                item.fields.named.iter_mut().for_each(|field| field.attrs.clear());
                item.ident.to_string()
            }
            _ => continue,
        };
        names.entry(module).or_default().insert(name);
        // Deriving Debug wants it of every member, and unions have written theirs by hand.
        let item =
            item.to_token_stream().to_string().replace(", Debug)", ")").replace("libc ::", "");
        text.push_str(&item);
        text.push('\n');
    }
    Ok((text, names))
}

/// A type's size, and the offsets of its members by name.
pub type Layout = (usize, BTreeMap<String, usize>);

/// Sizes and offsets that the crate promises at compile time (`layout!`): by type: size and
/// members.
///
/// # Errors
/// The unreadable file and the error.
pub fn layouts(source: &Path) -> Result<BTreeMap<String, Layout>> {
    let mut items = Vec::new();
    read_module(source, &source.join("lib.rs"), "", &mut items)?;
    let mut layouts = BTreeMap::new();
    for (_, item) in items {
        let Item::Macro(item) = item else { continue };
        if !item.mac.path.is_ident("layout") {
            continue;
        }
        let text = item.mac.tokens.to_string();
        let parsed = parse_layout(&text).ok_or(format!("layout!({text})"))?;
        layouts.insert(parsed.0, (parsed.1, parsed.2));
    }
    Ok(layouts)
}

/// `name : size { field @ offset , ... }`
fn parse_layout(text: &str) -> Option<(String, usize, BTreeMap<String, usize>)> {
    let (head, rest) = text.split_once('{')?;
    let (name, size) = head.split_once(':')?;
    let mut fields = BTreeMap::new();
    for field in
        rest.trim_end().strip_suffix('}')?.split(',').map(str::trim).filter(|f| !f.is_empty())
    {
        let (field, offset) = field.split_once('@')?;
        fields.insert(field.trim().to_owned(), offset.trim().parse().ok()?);
    }
    Some((name.trim().to_owned(), size.trim().parse().ok()?, fields))
}

/// The enumerators of an alias as Rust text.
fn enumerators(
    abi: &Abi,
    alias: &str,
    macros: &BTreeSet<String>,
    listed: &BTreeSet<String>,
) -> String {
    abi.constants
        .iter()
        .filter(|c| c.of == alias && !macros.contains(&c.name) && !listed.contains(&c.name))
        .map(|c| format!("{} = {}, ", c.name, c.written))
        .collect()
}

/// Aliases without a C name, which are replaced by their targets. Aliases with constants are enums,
/// and cbindgen.toml renames others to C types.
fn plain_aliases(items: &[(String, Item)], abi: &Abi) -> BTreeMap<String, Type> {
    let with_constants: BTreeSet<_> = abi.constants.iter().map(|c| c.of.as_str()).collect();
    items
        .iter()
        .filter_map(|(_, item)| match item {
            Item::Type(alias) => Some((alias.ident.to_string(), (*alias.ty).clone())),
            _ => None,
        })
        .filter(|(name, _)| !with_constants.contains(name.as_str()) && !name.starts_with("be"))
        .collect()
}

/// Replaces plain aliases, and writes documentation for readers of C.
struct Rewrite {
    aliases: BTreeMap<String, Type>,
}

impl VisitMut for Rewrite {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        if let Some(target) = last_segment(ty).and_then(|name| self.aliases.get(&name)) {
            *ty = target.clone();
        }
        visit_mut::visit_type_mut(self, ty);
    }

    fn visit_attributes_mut(&mut self, attributes: &mut Vec<Attribute>) {
        attributes.retain(is_for_cbindgen);
        for attribute in attributes {
            if let Some(text) = doc_text(attribute) {
                let text = for_c(&text);
                *attribute = syn::parse_quote!(#[doc = #text]);
            } else {
                // An alignment is that of an array without elements behind the structure, which no
                // header of ours has.
                *attribute = syn::parse_quote!(#[repr(C)]);
            }
        }
    }
}

fn is_for_cbindgen(attribute: &Attribute) -> bool {
    attribute.path().is_ident("doc") || attribute.path().is_ident("repr")
}

fn doc_text(attribute: &Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    match &pair.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. })
            if attribute.path().is_ident("doc") =>
        {
            Some(text.value())
        }
        _ => None,
    }
}

fn documentation(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(doc_text);
    lines.map(|line| format!("#[doc = {:?}]", for_c(&line))).collect()
}

/// Documentation without links and quotes: ``[`ibv_qp`](crate::ibv_qp)`` is `ibv_qp`, and a Rust
/// name is the C one.
fn for_c(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("[`") {
        let (before, link) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = link.find("`]") else { break };
        out.push_str(&link[2..end]);
        rest = &link[end + 2..];
        if rest.starts_with('(')
            && let Some(close) = rest.find(')')
        {
            rest = &rest[close + 1..];
        }
    }
    out.push_str(rest);
    let out = out.replace('`', "").replace("[inline]", "");
    spelled(&out)
}

/// The text with C's spelling of whole words.
fn spelled(text: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_word) {
        let (before, word) = rest.split_at(at);
        let end = word.find(|c| !is_word(c)).unwrap_or(word.len());
        out.push_str(before);
        out.push_str(names::spelling(&word[..end]));
        rest = &word[end..];
    }
    out + rest
}

fn last_segment(ty: &Type) -> Option<String> {
    let Type::Path(path) = ty else { return None };
    path.path.segments.last().map(|segment| segment.ident.to_string())
}

/// Reads a file and its modules.
fn read_module(
    folder: &Path,
    file: &Path,
    module: &str,
    items: &mut Vec<(String, Item)>,
) -> Result<()> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let parsed = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    for item in parsed.items {
        match item {
            Item::Mod(inner) if inner.content.is_none() => {
                let name = inner.ident.to_string();
                let path =
                    if module.is_empty() { name.clone() } else { format!("{module}/{name}") };
                let plain = folder.join(format!("{path}.rs"));
                let nested = folder.join(&path).join("mod.rs");
                let file = if plain.exists() { plain } else { nested };
                read_module(folder, &file, &path, items)?;
            }
            other => items.push((module.to_owned(), other)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_loses_its_rust_markup() {
        assert_eq!(
            for_c("Bits of [`ibv_send_flags`](crate::ibv_send_flags)."),
            "Bits of ibv_send_flags."
        );
        assert_eq!(for_c("`type_` and [`a`] (see `b`)"), "type and a (see b)");
        assert_eq!(for_c("an [1] array"), "an [1] array");
    }

    #[test]
    fn only_whole_words_have_another_spelling() {
        assert_eq!(
            spelled("type_ of ibv_parent_domain_init_attr, in_"),
            "type of ibv_parent_domain_init_attr, in"
        );
    }
}
