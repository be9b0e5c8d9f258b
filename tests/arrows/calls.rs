//! Dependencies between files of a crate by calls. A call of a function or method depends on the
//! file that defines the name, if exactly one file of the crate defines it. `impl` blocks of one
//! type in many files need no imports, so imports alone miss these dependencies.
//!
//! A name that another crate of the repository or the standard library defines does not count,
//! because the code alone does not tell which function is called. Tests are excluded.

use super::imports::{Imports, is_test};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{Expr, Macro};

/// Names that the standard library also defines.
const OF_THE_STANDARD_LIBRARY: &[&str] = &[
    "address",
    "advance",
    "append",
    "as_bytes",
    "as_mut",
    "as_mut_ptr",
    "as_ptr",
    "as_raw_fd",
    "as_ref",
    "as_str",
    "begin",
    "bytes",
    "clear",
    "clone",
    "close",
    "collect",
    "compare_exchange",
    "contains",
    "copy",
    "count",
    "default",
    "deref",
    "drop",
    "encode",
    "decode",
    "entry",
    "extend",
    "fetch_add",
    "fetch_sub",
    "fill",
    "filter",
    "find",
    "first",
    "flush",
    "from",
    "handle",
    "hash",
    "index",
    "insert",
    "into",
    "is_empty",
    "is_err",
    "is_finished",
    "is_multicast",
    "is_none",
    "is_ok",
    "is_some",
    "iter",
    "join",
    "kind",
    "last",
    "load",
    "lock",
    "lookup",
    "name",
    "next",
    "open",
    "parse",
    "peek",
    "poll",
    "position",
    "push",
    "read",
    "recv",
    "remove",
    "replace",
    "reserve",
    "reset",
    "retain",
    "round",
    "seek",
    "send",
    "shutdown",
    "size",
    "sleep",
    "spawn",
    "split_at",
    "start",
    "state",
    "stop",
    "store",
    "swap",
    "table",
    "take",
    "to_owned",
    "to_string",
    "total",
    "truncate",
    "try_from",
    "try_into",
    "try_lock",
    "unlock",
    "unwrap",
    "update",
    "version",
    "wait",
    "wake",
    "write",
    "zeroed",
];

/// The functions that a crate defines, and the files that define each.
pub(crate) fn defined(of: &Imports) -> BTreeMap<String, BTreeSet<usize>> {
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    for (file, items) in of.code() {
        let mut code = Code::default();
        items.iter().for_each(|item| code.visit_item(item));
        for name in code.defined {
            found.entry(name).or_default().insert(file);
        }
    }
    found
}

/// Adds the dependencies by calls to those by imports. `elsewhere` are the functions of all other
/// crates. Returns the number of calls that were followed.
pub(crate) fn follow(of: &mut Imports, elsewhere: &BTreeSet<String>) -> usize {
    let unique: BTreeMap<_, _> = defined(of)
        .into_iter()
        .filter(|(name, files)| {
            files.len() == 1
                && !elsewhere.contains(name)
                && !OF_THE_STANDARD_LIBRARY.contains(&name.as_str())
        })
        .filter_map(|(name, files)| Some((name, files.into_iter().next()?)))
        .collect();
    let mut arrows = vec![];
    for (file, items) in of.code() {
        let mut code = Code::default();
        items.iter().for_each(|item| code.visit_item(item));
        for name in code.called {
            if let Some(to) = unique.get(&name).filter(|to| **to != file) {
                arrows.push(((file, *to), format!("{name}()")));
            }
        }
    }
    let count = arrows.len();
    for (arrow, name) in arrows {
        of.arrows.entry(arrow).or_default().insert(name);
    }
    count
}

/// The functions that a piece of code defines and calls.
#[derive(Default)]
struct Code {
    defined: BTreeSet<String>,
    called: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for Code {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test(super::imports::attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.defined.insert(item.sig.ident.to_string());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.defined.insert(item.sig.ident.to_string());
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.defined.insert(item.sig.ident.to_string());
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.called.insert(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        // A name alone is a local name, or has an import that counts.
        if let Expr::Path(function) = &*call.func
            && function.path.segments.len() > 1
            && let Some(last) = function.path.segments.last()
        {
            self.called.insert(last.ident.to_string());
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.tokens(call.tokens.clone());
    }
}

impl Code {
    /// Names between `.` or `::` and parentheses, in tokens that only a macro can parse.
    fn tokens(&mut self, tokens: TokenStream) {
        let (mut name, mut is_behind_mark) = (None, false);
        for token in tokens {
            let before = name.take();
            let was_behind_mark = std::mem::take(&mut is_behind_mark);
            match token {
                TokenTree::Ident(ident) => name = was_behind_mark.then(|| ident.to_string()),
                TokenTree::Group(group) => {
                    if group.delimiter() == Delimiter::Parenthesis {
                        self.called.extend(before);
                    }
                    self.tokens(group.stream());
                }
                TokenTree::Punct(mark) => is_behind_mark = matches!(mark.as_char(), '.' | ':'),
                TokenTree::Literal(_) => {}
            }
        }
    }
}
