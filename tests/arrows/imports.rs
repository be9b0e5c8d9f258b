//! The imports between files of a crate, read from the code itself.
//!
//! An import is a path into another file: in a `use`, a type, an expression, a pattern, or a macro
//! call. A name that a module re-exports (`pub use`) leads to the file that defines it. A module's
//! declaration of its children is no import. Tests are excluded, and so are method calls, which
//! name no file (`calls`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Macro, UseTree};

/// The meaning of a name in a module.
#[derive(Clone, Debug)]
enum NameTarget {
    Module(usize),
    /// Defined in this module's file.
    Defined,
    /// The target of this path.
    Passed(Vec<String>),
}

/// A module, with or without a file of its own.
struct Module {
    parent: usize,
    file: usize,
    names: BTreeMap<String, NameTarget>,
    /// Modules whose names are all imported.
    globs: Vec<Vec<String>>,
    items: Vec<Item>,
}

/// The files of a crate, and the imports between them with their paths.
#[derive(Default)]
pub(crate) struct Imports {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) arrows: BTreeMap<(usize, usize), BTreeSet<String>>,
    modules: Vec<Module>,
}

impl Imports {
    /// The imports of the library with this `src` folder.
    pub(crate) fn of(src: &Path) -> Self {
        let mut this = Self::default();
        let root = src.join("lib.rs");
        let items = this.open(&root);
        this.add(0, 0, items, src);
        for module in 0..this.modules.len() {
            this.follow(module);
        }
        this
    }

    /// The code of each file; a file with several modules is named several times.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, &[Item])> {
        self.modules.iter().map(|module| (module.file, &*module.items))
    }

    fn open(&mut self, path: &Path) -> Vec<Item> {
        let text = fs::read_to_string(path).expect("a source file");
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        self.files.push(path.to_owned());
        parsed.items
    }

    /// Adds a module with its children in `folder`; returns its number.
    fn add(&mut self, parent: usize, file: usize, items: Vec<Item>, folder: &Path) -> usize {
        let here = self.modules.len();
        let empty = Module { parent, file, names: BTreeMap::new(), globs: vec![], items: vec![] };
        self.modules.push(empty);
        let items: Vec<_> = items.into_iter().filter(|item| !is_test(attributes(item))).collect();
        for item in &items {
            let (name, meaning) = match item {
                Item::Mod(inner) => {
                    let name = inner.ident.to_string();
                    let own = folder.join(&name);
                    let child = match &inner.content {
                        Some((_, items)) => self.add(here, file, items.clone(), &own),
                        None => {
                            let beside = folder.join(format!("{name}.rs"));
                            let elsewhere = path_attribute(&inner.attrs).map(|path| {
                                self.files[file].parent().expect("a folder").join(path)
                            });
                            let path = elsewhere.unwrap_or_else(|| {
                                if beside.exists() { beside } else { own.join("mod.rs") }
                            });
                            let file = self.files.len();
                            let items = self.open(&path);
                            self.add(here, file, items, &own)
                        }
                    };
                    (name, NameTarget::Module(child))
                }
                Item::Use(item) => {
                    self.pass_on(here, &mut vec![], &item.tree);
                    continue;
                }
                item => match defined(item) {
                    Some(name) => (name, NameTarget::Defined),
                    None => continue,
                },
            };
            self.modules[here].names.insert(name, meaning);
        }
        self.modules[here].items = items;
        here
    }

    fn pass_on(&mut self, here: usize, path: &mut Vec<String>, tree: &UseTree) {
        for (path, name) in leaves(path, tree) {
            match name {
                Some(name) => {
                    // A module and a function may share a name; a module is looked up by its own
                    // declaration.
                    self.modules[here].names.entry(name).or_insert(NameTarget::Passed(path));
                }
                None => self.modules[here].globs.push(path),
            }
        }
    }

    /// The file in which `path`, used in module `from`, ends; `None` in another crate, at a module
    /// itself, or for an unknown path.
    fn target(&self, from: usize, path: &[String], depth: usize) -> Option<usize> {
        match self.resolve(from, path, depth)? {
            PathEnd::File(file) => Some(file),
            PathEnd::Module(_) => None,
        }
    }

    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<PathEnd> {
        if depth > 16 {
            return None;
        }
        let Some((first, rest)) = path.split_first() else { return Some(PathEnd::Module(from)) };
        let module = &self.modules[from];
        match first.as_str() {
            "crate" => return self.resolve(0, rest, depth + 1),
            "super" => return self.resolve(module.parent, rest, depth + 1),
            "self" => return self.resolve(from, rest, depth + 1),
            _ => {}
        }
        match module.names.get(first) {
            Some(NameTarget::Module(child)) => self.resolve(*child, rest, depth + 1),
            Some(NameTarget::Defined) => Some(PathEnd::File(module.file)),
            // A `use` of another crate begins with its name, which is no local name unless the same
            // module lists it.
            Some(NameTarget::Passed(to)) if to.first() == Some(first) => None,
            Some(NameTarget::Passed(to)) => match self.resolve(from, to, depth + 1)? {
                PathEnd::Module(child) => self.resolve(child, rest, depth + 1),
                file => Some(file),
            },
            None => {
                module.globs.iter().filter(|glob| self.is_ours(module, glob)).find_map(|glob| {
                    let PathEnd::Module(child) = self.resolve(from, glob, depth + 1)? else {
                        return None;
                    };
                    self.resolve(child, path, depth + 1)
                })
            }
        }
    }

    /// Whether a path begins in this crate.
    fn is_ours(&self, module: &Module, path: &[String]) -> bool {
        let first = path.first().map_or("", String::as_str);
        matches!(first, "crate" | "super" | "self") || module.names.contains_key(first)
    }

    /// Notes whom the code of a module imports from.
    fn follow(&mut self, here: usize) {
        let mut code = PathsInCode::default();
        for item in &self.modules[here].items {
            if !matches!(item, Item::Mod(_)) {
                code.visit_item(item);
            }
        }
        let file = self.modules[here].file;
        for path in code.paths {
            if let Some(target) = self.target(here, &path, 0).filter(|target| *target != file) {
                self.arrows.entry((file, target)).or_default().insert(path.join("::"));
            }
        }
    }

    /// The circles: sets of several files in which each file leads to all others.
    pub(crate) fn circles(&self) -> Vec<Vec<usize>> {
        let count = self.files.len();
        let mut next = vec![vec![]; count];
        for &(from, to) in self.arrows.keys() {
            next[from].push(to);
        }
        let reached: Vec<Vec<bool>> = (0..count)
            .map(|from| {
                let mut seen = vec![false; count];
                let mut open = next[from].clone();
                while let Some(file) = open.pop() {
                    if !std::mem::replace(&mut seen[file], true) {
                        open.extend(&next[file]);
                    }
                }
                seen
            })
            .collect();
        let mut circles = vec![];
        let mut placed = vec![false; count];
        for file in 0..count {
            let circle: Vec<_> = (file..count)
                .filter(|&other| reached[file][other] && reached[other][file])
                .collect();
            if circle.len() > 1 && !placed[file] {
                circle.iter().for_each(|&member| placed[member] = true);
                circles.push(circle);
            }
        }
        circles
    }
}

enum PathEnd {
    Module(usize),
    File(usize),
}

/// The paths in a piece of code.
#[derive(Default)]
struct PathsInCode {
    paths: BTreeSet<Vec<String>>,
}

impl<'ast> Visit<'ast> for PathsInCode {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !matches!(item.vis, syn::Visibility::Inherited) {
            // A re-export. A use of the name in this module has its own path.
            return;
        }
        self.paths.extend(leaves(&mut vec![], &item.tree).into_iter().map(|(path, _)| path));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_macro(&mut self, call: &'ast Macro) {
        visit::visit_macro(self, call);
        self.tokens(call.tokens.clone());
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        visit::visit_item_macro(self, item);
    }
}

impl PathsInCode {
    /// Names joined by `::`, in tokens that only a macro can parse.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = vec![];
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.paths.insert(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            self.paths.insert(std::mem::take(&mut path));
            colons = 0;
        }
        self.paths.insert(path);
    }
}

/// The paths of a `use`, each with its local name; without a name for a glob.
fn leaves(path: &mut Vec<String>, tree: &UseTree) -> Vec<(Vec<String>, Option<String>)> {
    match tree {
        UseTree::Path(inner) => {
            path.push(inner.ident.to_string());
            let found = leaves(path, &inner.tree);
            path.pop();
            found
        }
        UseTree::Name(name) if name.ident == "self" => {
            vec![(path.clone(), path.last().cloned())]
        }
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            vec![(with(path, &name), Some(name))]
        }
        UseTree::Rename(name) => {
            vec![(with(path, &name.ident.to_string()), Some(name.rename.to_string()))]
        }
        UseTree::Glob(_) => vec![(path.clone(), None)],
        UseTree::Group(group) => group.items.iter().flat_map(|tree| leaves(path, tree)).collect(),
    }
}

fn with(path: &[String], name: &str) -> Vec<String> {
    path.iter().cloned().chain([name.to_owned()]).collect()
}

/// Whether the item exists in tests only.
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string() == "test",
        meta => meta.path().is_ident("test"),
    })
}

/// The file in an attribute `path`.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(literal) => match &literal.lit {
                syn::Lit::Str(path) => Some(path.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    })
}

pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name of an item.
fn defined(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}
