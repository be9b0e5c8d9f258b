//! Manual pages for the staged tree and its tests: names, sections, the declarations in the
//! SYNOPSIS, and the example of a page. Pages are mdoc(7), one file for a group of names.

use std::fs;
use std::path::{Path, PathBuf};

/// A page of `man/`.
#[derive(Clone, Debug)]
pub struct Page {
    /// The source.
    pub path: PathBuf,
    /// File name without the section.
    pub stem: String,
    /// 3 for functions, 7 for the rest.
    pub section: u8,
    lines: Vec<String>,
}

/// A function of a SYNOPSIS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prototype {
    /// Line of the source, counted from 1.
    pub line: usize,
    /// The type of its result.
    pub result: String,
    /// Its name.
    pub name: String,
    /// The parameters as written.
    pub parameters: Vec<String>,
}

/// A literal display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Display {
    /// Line of its first line of text, counted from 1.
    pub line: usize,
    /// Its lines.
    pub text: String,
}

impl Page {
    /// All pages of a folder, in order.
    ///
    /// # Errors
    /// A folder or file that cannot be read.
    pub fn all(folder: &Path) -> crate::Result<Vec<Self>> {
        let fail = |path: &Path, e: std::io::Error| format!("cannot read {}: {e}", path.display());
        let mut pages = Vec::new();
        for entry in fs::read_dir(folder).map_err(|e| fail(folder, e))?.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((stem, section)) = name.rsplit_once('.') else { continue };
            let Ok(section) = section.parse() else { continue };
            let text = fs::read_to_string(&path).map_err(|e| fail(&path, e))?;
            let lines = text.lines().map(str::to_string).collect();
            pages.push(Self { path, stem: stem.to_string(), section, lines });
        }
        pages.sort_by(|a, b| (a.section, &a.stem).cmp(&(b.section, &b.stem)));
        Ok(pages)
    }

    /// `name.section`.
    pub fn installed_name(&self) -> String {
        format!("{}.{}", self.stem, self.section)
    }

    /// Titles of the sections, in order.
    pub fn sections(&self) -> Vec<String> {
        self.macros("Sh").map(|(_, rest)| rest.replace('"', "")).collect()
    }

    /// The names of the page's NAME section.
    pub fn names(&self) -> Vec<String> {
        let name = self.section_lines("NAME").filter_map(|(_, line)| line.strip_prefix(".Nm "));
        name.map(|rest| rest.trim_end_matches(" ,").trim().to_string()).collect()
    }

    /// All titles by which man(1) finds the page: its names, and titles of upstream's pages that
    /// name no function (`also:` remarks).
    pub fn titles(&self) -> Vec<String> {
        let mut titles = self.names();
        titles.extend(self.remarks("also:"));
        titles
    }

    /// Lines of a section with their numbers.
    fn section_lines<'a>(&'a self, title: &str) -> impl Iterator<Item = (usize, &'a str)> {
        let begin = self.lines.iter().position(|l| l.strip_prefix(".Sh ") == Some(title));
        let begin = begin.map_or(self.lines.len(), |at| at + 1);
        let lines = self.lines.iter().enumerate().skip(begin).map(|(n, l)| (n + 1, l.as_str()));
        lines.take_while(|(_, line)| !line.starts_with(".Sh "))
    }

    /// Uses of a macro at the beginning of a line, with what follows it.
    pub fn macros<'a>(&'a self, name: &str) -> impl Iterator<Item = (usize, &'a str)> {
        let start = format!(".{name} ");
        self.lines
            .iter()
            .enumerate()
            .filter_map(move |(n, line)| line.strip_prefix(&start).map(|rest| (n + 1, rest.trim())))
    }

    /// Words marked with a macro, wherever in a line it stands: `.Dv X`, `.It Dv X`, `.Op Dv X`.
    pub fn marked(&self, name: &str) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for (n, line) in self.lines.iter().enumerate().filter(|(_, l)| l.starts_with('.')) {
            let mut words = line.get(1..).unwrap_or_default().split_whitespace();
            while let Some(word) = words.next() {
                if word != name {
                    continue;
                }
                for word in words.by_ref() {
                    // Another macro ends the marked words.
                    let is_macro = word.len() == 2
                        && word.starts_with(char::is_uppercase)
                        && word.ends_with(char::is_lowercase);
                    if is_macro {
                        break;
                    }
                    if word.len() > 1 {
                        found.push((n + 1, word.to_string()));
                    }
                }
            }
        }
        found
    }

    /// What the page refers to: name and section.
    pub fn references(&self) -> Vec<(usize, String, String)> {
        let mut found = Vec::new();
        for (n, line) in self.lines.iter().enumerate().filter(|(_, l)| l.starts_with('.')) {
            let words: Vec<_> = line.get(1..).unwrap_or_default().split_whitespace().collect();
            for three in words.windows(3) {
                if let [macro_name, name, section] = three
                    && *macro_name == "Xr"
                {
                    found.push((n + 1, (*name).to_string(), (*section).to_string()));
                }
            }
        }
        found
    }

    /// Functions of the SYNOPSIS.
    pub fn prototypes(&self) -> Vec<Prototype> {
        let (mut found, mut result, mut open) = (Vec::new(), String::new(), None::<Prototype>);
        for (line, text) in self.section_lines("SYNOPSIS") {
            let Some((name, rest)) = text.strip_prefix('.').and_then(|t| t.split_once(' ')) else {
                if text == ".Fc"
                    && let Some(prototype) = open.take()
                {
                    found.push(prototype);
                }
                continue;
            };
            let mut words = arguments(rest).into_iter();
            match name {
                "Ft" => result = words.collect::<Vec<_>>().join(" "),
                "Fn" | "Fo" => {
                    let called = words.next().unwrap_or_default();
                    let parameters = words.collect();
                    let result = result.clone();
                    let prototype = Prototype { line, result, name: called, parameters };
                    if name == "Fn" {
                        found.push(prototype);
                    } else {
                        open = Some(prototype);
                    }
                }
                "Fa" => {
                    if let Some(prototype) = &mut open {
                        prototype.parameters.extend(words);
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// Literal displays of a section: declarations in a SYNOPSIS, programs in EXAMPLES.
    pub fn displays(&self, section: &str) -> Vec<Display> {
        let (mut found, mut open) = (Vec::new(), None::<Display>);
        for (line, text) in self.section_lines(section) {
            if text.starts_with(".Bd -literal") {
                open = Some(Display { line: line + 1, text: String::new() });
            } else if text == ".Ed" {
                found.extend(open.take());
            } else if let Some(display) = &mut open {
                let plain = text.replace("\\&", "").replace("\\(aq", "'").replace("\\-", "-");
                display.text.push_str(&plain.replace("\\e", "\\"));
                display.text.push('\n');
            }
        }
        found
    }

    /// The headers in the SYNOPSIS.
    pub fn headers(&self) -> Vec<String> {
        let lines = self.section_lines("SYNOPSIS");
        lines.filter_map(|(_, l)| l.strip_prefix(".In ")).map(|h| h.trim().to_string()).collect()
    }

    /// Words of comment lines that begin with `key`.
    pub fn remarks(&self, key: &str) -> Vec<String> {
        let start = format!(".\\\" {key} ");
        let lines = self.lines.iter().filter_map(|l| l.strip_prefix(&start));
        lines.flat_map(str::split_whitespace).map(str::to_string).collect()
    }
}

/// The arguments of a macro: words, or several between quotes.
fn arguments(text: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        found.push(word.to_string());
        rest = after.trim_start();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        let lines = text.lines().map(str::to_string).collect();
        Page { path: PathBuf::new(), stem: "x".into(), section: 3, lines }
    }

    #[test]
    fn a_page_tells_its_names_and_declarations() {
        let page = page(
            ".\\\" soft-lacks: a b\n.Sh NAME\n.Nm one ,\n.Nm two\n.Nd things\n.Sh SYNOPSIS\n.In a.h\n.Ft \"struct x *\"\n\
             .Fn one \"int a\" \"char *b\"\n.Ft int\n.Fo two\n.Fa \"struct y *z\"\n.Fa \"int c\"\n.Fc\n.Bd -literal\n\
             struct y {\n    int n;\n};\n.Ed\n.Sh EXAMPLES\n.Bd -literal\nputs(\"\\en\");\n.Ed\n.Xr one 3 ,\n",
        );
        assert_eq!(page.names(), ["one", "two"]);
        assert_eq!(page.sections(), ["NAME", "SYNOPSIS", "EXAMPLES"]);
        let [one, two] = &page.prototypes()[..] else { panic!("two prototypes") };
        assert_eq!((one.result.as_str(), one.parameters.len()), ("struct x *", 2));
        assert_eq!((two.name.as_str(), two.parameters[0].as_str()), ("two", "struct y *z"));
        assert_eq!(page.displays("SYNOPSIS")[0].text, "struct y {\n    int n;\n};\n");
        assert_eq!(page.displays("EXAMPLES")[0].text, "puts(\"\\n\");\n");
        assert_eq!(page.references()[0].1, "one");
        assert_eq!(page.remarks("soft-lacks:"), ["a", "b"]);
        assert_eq!(page.headers(), ["a.h"]);
    }

    #[test]
    fn marked_words_are_found_within_other_macros() {
        let page = page(".It Dv IBV_A\n.Dv IBV_B ,\n.Er EINVAL\n.Pq Dv IBV_C No and Dv IBV_D\n");
        let names: Vec<_> = page.marked("Dv").into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["IBV_A", "IBV_B", "IBV_C", "IBV_D"]);
    }
}
