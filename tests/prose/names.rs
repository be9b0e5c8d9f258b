//! Names of functions and fields that more than one file sees. A preposition, a participle or a
//! bare pronoun as a name says what the value is for only at its use. `tests/prose.rs` runs these
//! tests beside the tests of comments and of names of types.

use std::path::Path;

use syn::visit::{self, Visit};

/// Folders of shipped crates whose names the test checks: not yet `cface/` and `cli/`. Crate `abi`
/// has the names of the C library. The test does not see functions within macro calls.
const SHIPPED: [&str; 6] =
    ["src/", "provider-loader/", "providers/", "rdmacm/", "layers/", "netlink/"];

/// Words that name no value and no action. A field takes the noun of its value, a function the
/// verb of its action.
const VAGUE: [&str; 110] = [
    "about",
    "act",
    "again",
    "along",
    "around",
    "ask",
    "asked",
    "asking",
    "bad",
    "before",
    "behind",
    "beside",
    "born",
    "both",
    "bring",
    "brings",
    "by",
    "came",
    "done",
    "draw",
    "drawn",
    "early",
    "far",
    "few",
    "fine",
    "given",
    "gone",
    "got",
    "had",
    "heard",
    "held",
    "here",
    "how",
    "into",
    "it",
    "judge",
    "judged",
    "keep",
    "kept",
    "known",
    "late",
    "look",
    "lose",
    "lost",
    "made",
    "many",
    "may",
    "mean",
    "meaning",
    "meant",
    "mine",
    "mistakes",
    "most",
    "nasty",
    "near",
    "need",
    "needed",
    "needs",
    "note",
    "noted",
    "obey",
    "odd",
    "one",
    "only",
    "other",
    "others",
    "ours",
    "over",
    "own",
    "place",
    "places",
    "play",
    "rare",
    "remember",
    "remembered",
    "rest",
    "said",
    "say",
    "seen",
    "served",
    "settle",
    "shown",
    "silence",
    "silent",
    "so",
    "some",
    "spot",
    "study",
    "tally",
    "tell",
    "theirs",
    "then",
    "there",
    "those",
    "through",
    "told",
    "touch",
    "trouble",
    "unusual",
    "wanted",
    "wants",
    "way",
    "well",
    "what",
    "when",
    "whether",
    "who",
    "why",
    "wish",
    "wrong",
];

/// Collects the vague names that other files see: `pub` in any form, and methods of traits.
#[derive(Debug, Default)]
struct VagueNames {
    found: Vec<String>,
}

impl VagueNames {
    fn examine(&mut self, visibility: Option<&syn::Visibility>, name: &syn::Ident) {
        let is_seen = !matches!(visibility, Some(syn::Visibility::Inherited));
        let text = name.to_string();
        if is_seen && VAGUE.contains(&text.as_str()) {
            self.found.push(text);
        }
    }
}

impl<'ast> Visit<'ast> for VagueNames {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.examine(Some(&item.vis), &item.sig.ident);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.examine(Some(&item.vis), &item.sig.ident);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.examine(None, &item.sig.ident);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = &field.ident {
            self.examine(Some(&field.vis), name);
        }
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        for name in variant.fields.iter().filter_map(|field| field.ident.as_ref()) {
            self.examine(None, name);
        }
        visit::visit_variant(self, variant);
    }
}

/// The vague names of a source file.
fn vague_names(text: &str) -> Vec<String> {
    let mut names = VagueNames::default();
    names.visit_file(&syn::parse_file(text).expect("Rust source"));
    names.found
}

/// Whether the rule holds for a file: a source file of a shipped crate, and no test.
fn is_shipped(file: &Path) -> bool {
    let is_test = file.components().any(|part| part.as_os_str() == "tests");
    !is_test
        && file.extension().is_some_and(|extension| extension == "rs")
        && SHIPPED.iter().any(|folder| file.starts_with(folder))
}

#[test]
fn no_function_or_field_of_a_shipped_crate_has_a_vague_name() {
    let mut wrong = Vec::new();
    for file in super::files().into_iter().filter(|file| is_shipped(file)) {
        let text = std::fs::read_to_string(super::root().join(&file)).expect("a source file");
        for name in vague_names(&text) {
            wrong.push(format!("{}: {name}", file.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "name the value of each field and the action of each function:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn private_names_and_locals_are_free() {
    let source = "pub fn over(given: u8) {}\nfn at() {}\nstruct Queue {\n  pub(crate) most: u8,\n  \
                  own: u8,\n}\nenum Step { Done { again: bool } }\ntrait Source { fn bring(); }\n";
    assert_eq!(vague_names(source), ["over", "most", "again", "bring"]);
}
