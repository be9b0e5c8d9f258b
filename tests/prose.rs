//! Comments and documents are plain: a measure for each crate, and a limit that no crate exceeds.
//!
//! A sentence with a pronoun as its subject ("it", "one", "who", "what", "there") depends on the
//! sentence before. The measure is the share of pronouns in a sentence of 6 to 60 words: the mean
//! share, and the percentage of sentences in which a quarter of the words are pronouns. A low
//! figure is no proof of good prose.

mod files;
#[path = "prose/names.rs"]
mod names;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A mean share of pronouns, a percentage of sentences with a share of 25 % or more, and a number
/// of comment lines wider than [`COMMENT_COLUMNS`].
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    mean: f64,
    percent: f64,
    wide: usize,
}

/// The limit of every crate, and of every folder at the top that is no crate.
const LIMIT: Figures = Figures { mean: 0.07, percent: 3.0, wide: 0 };

/// Places without text of the project.
const SKIPPED: [&str; 2] = ["fuzz/corpus", "c-tests/data"];

/// Wider comment lines are counted; wider lines of documents are refused.
const COMMENT_COLUMNS: usize = 100;
const DOCUMENT_COLUMNS: usize = 120;
/// Pages that commands write.
const GENERATED: [&str; 5] = [
    "docs/reference/abi-matrix.md",
    "docs/reference/clauses.md",
    "docs/reference/soft-coverage.md",
    "docs/reference/benchmarks.md",
    "docs/reference/benchmarks-wire.md",
];

const PRONOUNS: [&str; 32] = [
    "it",
    "its",
    "they",
    "them",
    "their",
    "that",
    "this",
    "those",
    "these",
    "who",
    "whom",
    "whoever",
    "whose",
    "what",
    "whatever",
    "one",
    "ones",
    "there",
    "such",
    "so",
    "he",
    "him",
    "his",
    "somebody",
    "anybody",
    "nobody",
    "everybody",
    "us",
    "we",
    "our",
    "other",
    "others",
];

const WORST: usize = 20;

/// A sentence with its place.
#[derive(Clone, Debug)]
struct Sentence {
    share: f64,
    words: usize,
    place: String,
    text: String,
}

/// The sentences of a folder, and its wide comment lines.
#[derive(Debug, Default)]
struct Prose {
    sentences: Vec<Sentence>,
    wide: Vec<String>,
}

impl Prose {
    fn figures(&self) -> Figures {
        let count = self.sentences.len().max(1) as f64;
        let sum: f64 = self.sentences.iter().map(|sentence| sentence.share).sum();
        let bad = self.sentences.iter().filter(|sentence| sentence.share >= 0.25).count();
        Figures { mean: sum / count, percent: 100.0 * bad as f64 / count, wide: self.wide.len() }
    }

    fn worst(&self) -> String {
        let mut sentences = self.sentences.clone();
        let weight = |s: &Sentence| s.share * s.words.min(20) as f64;
        sentences.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let lines = sentences.iter().take(WORST);
        lines.map(|s| format!("  {:.2} {}: {}\n", s.share, s.place, s.text)).collect()
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The source files and documents of the project, as paths from the root.
fn files() -> Vec<PathBuf> {
    let root = root();
    let inner = |path: &Path| path.strip_prefix(&root).expect("below the root").to_owned();
    let is_skipped = |path: &Path| SKIPPED.iter().any(|skipped| inner(path).starts_with(skipped));
    let found = files::below(&root, is_skipped).into_iter();
    let own = found.filter(|path| files::ends_in(path, &["rs", "c", "h", "md"]));
    own.map(|path| inner(&path)).collect()
}

/// Paragraphs of a document without code, tables and headings, with the number of their first line.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    let (mut fenced, mut paragraph, mut first) = (false, String::new(), 1);
    for (number, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let is_fence = start.starts_with("```");
        fenced ^= is_fence;
        let is_text = !(fenced || is_fence || line.starts_with("    ") || start.is_empty());
        if is_text && !start.starts_with('|') && !start.starts_with('#') {
            paragraph.push_str(start.trim_start_matches(['-', '*', ' ']));
            paragraph.push(' ');
            continue;
        }
        if !paragraph.is_empty() {
            all.push((first, std::mem::take(&mut paragraph)));
        }
        first = number + 2;
    }
    if !paragraph.is_empty() {
        all.push((first, paragraph));
    }
    all
}

/// The text of a comment line, without its mark. `within`: a C comment is open.
fn comment<'a>(line: &'a str, within: &mut bool) -> Option<&'a str> {
    let line = line.trim();
    if *within {
        *within = !line.contains("*/");
        return Some(line.trim_end_matches("*/").trim_start_matches('*').trim());
    }
    if let Some(rest) = line.strip_prefix("//") {
        return Some(rest.trim_start_matches(['/', '!']).trim());
    }
    let rest = line.strip_prefix("/*")?;
    *within = !rest.contains("*/");
    Some(rest.trim_start_matches('*').split("*/").next().unwrap_or_default().trim())
}

/// Comments of a source file without the code in them, each with the number of its first line; and
/// the numbers of wide lines.
fn comments(text: &str) -> (Vec<(usize, String)>, Vec<usize>) {
    let (mut all, mut wide) = (Vec::<(usize, String)>::new(), Vec::new());
    let (mut within, mut fenced, mut last) = (false, false, 0);
    for (index, line) in text.lines().enumerate() {
        let Some(content) = comment(line, &mut within) else { continue };
        let number = index + 1;
        if line.chars().count() > COMMENT_COLUMNS {
            wide.push(number);
        }
        if all.is_empty() || last + 1 != number {
            fenced = false;
            all.push((number, String::new()));
        }
        last = number;
        let is_fence = content.starts_with("```");
        fenced ^= is_fence;
        if content.is_empty() || is_fence || fenced {
            all.push((number + 1, String::new()));
        } else if let Some((_, text)) = all.last_mut() {
            text.push_str(content);
            text.push(' ');
        }
    }
    (all, wide)
}

/// The sentences of a paragraph: text up to one of `.!?:;` before a space.
fn sentences(text: &str) -> Vec<String> {
    let parts = text.split('`').enumerate();
    let text: String = parts.map(|(n, part)| if n % 2 == 0 { part } else { "X" }).collect();
    let mut all = vec![String::new()];
    for word in text.split_whitespace() {
        let sentence = all.last_mut().expect("a sentence");
        if !sentence.is_empty() {
            sentence.push(' ');
        }
        sentence.push_str(word);
        if word.ends_with(['.', '!', '?', ':', ';']) {
            all.push(String::new());
        }
    }
    all
}

/// The number of words and the share of pronouns; `None` for a text that is too short or no
/// sentence.
fn measure(sentence: &str) -> Option<(usize, f64)> {
    let words = sentence.split_whitespace().count();
    if !(6..=60).contains(&words) {
        return None;
    }
    let is_pronoun =
        |word: &&str| PRONOUNS.iter().any(|pronoun| word.eq_ignore_ascii_case(pronoun));
    let tokens = sentence.split(|c: char| !c.is_alphanumeric() && c != '_');
    Some((words, tokens.filter(is_pronoun).count() as f64 / words as f64))
}

/// The folder that a file is counted for: the innermost crate, or else the file's topmost folder.
fn folder_of(file: &Path) -> String {
    let mut folders = file.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
    let is_crate = |folder: &&Path| root().join(folder).join("Cargo.toml").is_file();
    let top = || file.components().next().map(|part| Path::new(part.as_os_str()));
    let folder = folders.find(is_crate).or_else(top).unwrap_or(file);
    folder.display().to_string()
}

/// What is measured, by folder.
fn measured() -> BTreeMap<String, Prose> {
    let mut all = BTreeMap::<String, Prose>::new();
    for file in files() {
        let Ok(text) = fs::read_to_string(root().join(&file)) else { continue };
        let prose = all.entry(folder_of(&file)).or_default();
        let is_document = file.extension().is_some_and(|end| end == "md");
        let (parts, wide) =
            if is_document { (paragraphs(&text), Vec::new()) } else { comments(&text) };
        prose.wide.extend(wide.iter().map(|line| format!("{}:{line}", file.display())));
        for (line, part) in parts {
            if part.contains("SPDX") || part.contains("Copyright") {
                continue;
            }
            for text in sentences(&part) {
                if let Some((words, share)) = measure(&text) {
                    let place = format!("{}:{line}", file.display());
                    prose.sentences.push(Sentence { share, words, place, text });
                }
            }
        }
    }
    all
}

#[test]
fn no_folder_has_more_pronouns_or_wide_comments_than_its_limit() {
    let mut wrong = String::new();
    for (folder, prose) in measured() {
        let found = prose.figures();
        if std::env::var_os("FERROVERBS_PROSE").is_some() {
            println!("{folder}: {:.3}, {:.1} %, {}", found.mean, found.percent, found.wide);
        }
        if found.mean > LIMIT.mean || found.percent > LIMIT.percent {
            wrong += &format!(
                "{folder}: {found:?} exceeds {LIMIT:?}; the worst sentences:\n{}",
                prose.worst()
            );
        }
        if found.wide > LIMIT.wide {
            let lines: Vec<_> = prose.wide.iter().take(WORST).map(String::as_str).collect();
            wrong += &format!(
                "{folder}: {} comment lines are wider than {COMMENT_COLUMNS} columns, and {} may be; the first:\n  {}\n",
                found.wide,
                LIMIT.wide,
                lines.join("\n  ")
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn lines_of_documents_have_at_most_120_columns_but_for_code_and_tables() {
    let mut wide = Vec::new();
    let documents = files().into_iter().filter(|file| file.extension().is_some_and(|e| e == "md"));
    for file in documents.filter(|file| !GENERATED.iter().any(|page| file == Path::new(page))) {
        let mut fenced = false;
        for (number, line) in
            fs::read_to_string(root().join(&file)).expect("a page").lines().enumerate()
        {
            fenced ^= line.trim_start().starts_with("```");
            let is_free = fenced || line.starts_with("    ") || line.starts_with('|');
            if !is_free && line.chars().count() > DOCUMENT_COLUMNS {
                wide.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "too wide:\n{}", wide.join("\n"));
}

/// Names that say nothing about the thing they name. A type takes the noun of its field instead.
const VAGUE: [&str; 48] = [
    "Added", "Against", "Along", "Asked", "By", "Came", "Camp", "Comes", "Cut", "Doubted", "Far",
    "Fate", "Gone", "Held", "Here", "How", "In", "Known", "Left", "Leisure", "Look", "Mark",
    "Meaning", "Missed", "Note", "Of", "Once", "Only", "Out", "Over", "Place", "Pushed", "Rare",
    "Said", "Show", "State", "Still", "Stood", "Strays", "Strikes", "Then", "Told", "Void",
    "Wanted", "Way", "What", "When", "Wills",
];

/// The name of a type that a line of Rust defines.
fn defined_type(line: &str) -> Option<&str> {
    let mut words = line.split([' ', '(', '<', ';', '{', ':']).skip_while(|word| {
        word.is_empty()
            || word.starts_with("pub")
            || matches!(*word, "in" | "crate")
            || word.ends_with(')')
    });
    let keyword = words.next()?;
    let is_type = matches!(keyword, "struct" | "enum" | "trait" | "type" | "union");
    words.next().filter(|_| is_type)
}

#[test]
fn no_type_has_a_vague_name() {
    let mut wrong = Vec::new();
    for file in files().into_iter().filter(|file| file.extension().is_some_and(|e| e == "rs")) {
        let text = fs::read_to_string(root().join(&file)).expect("a source file");
        for (index, line) in text.lines().enumerate() {
            if defined_type(line).is_some_and(|name| VAGUE.contains(&name)) {
                wrong.push(format!("{}:{}: {}", file.display(), index + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "give these types the noun of their field:\n{}", wrong.join("\n"));
}

#[test]
fn definitions_of_types_are_found() {
    assert_eq!(defined_type("pub(crate) struct Held {"), Some("Held"));
    assert_eq!(defined_type("pub(in crate::engine) struct Held {"), Some("Held"));
    assert_eq!(defined_type("    enum State<T> {"), Some("State"));
    assert_eq!(defined_type("type Way = fn();"), Some("Way"));
    assert_eq!(defined_type("pub struct Over(u8);"), Some("Over"));
    assert_eq!(defined_type("    let state = State::new();"), None);
}

#[test]
fn sentences_end_at_marks_and_their_pronouns_are_counted() {
    let parts = sentences("It was there: one of `those x` is it. Next");
    assert_eq!(parts, ["It was there:", "one of X is it.", "Next"]);
    assert_eq!(measure("one two three four five"), None);
    assert_eq!(measure("It is one of those things here").map(|(n, _)| n), Some(7));
    let (_, share) = measure("The QP's one-sided request ends there now").expect("a sentence");
    assert!((share - 2.0 / 7.0).abs() < 1e-9, "{share}");
}

#[test]
fn comments_are_found_without_the_code_in_them() {
    let source =
        "//! One\n//! two.\n//!\n//! ```\n//! code\n//! ```\nfn f() {}\n/* a\n * b */\nx\n";
    let (found, wide) = comments(source);
    let text: Vec<_> =
        found.iter().map(|(_, text)| text.trim()).filter(|t| !t.is_empty()).collect();
    assert_eq!(text, ["One two.", "a b"]);
    assert!(wide.is_empty());
    assert_eq!(comments(&format!("// {}\n", "x".repeat(100))).1, [1]);
}
