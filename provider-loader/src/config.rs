//! The files of a `libibverbs.d` directory.
//!
//! Grammar, as rdma-core reads it: leading blanks are skipped, empty lines and lines that start with `#`
//! are ignored, anything else must be the word `driver` and a name. Every regular file of the directory
//! counts, whatever it is called.
//!
//! One comment has a meaning to us, and to nobody else: `# ferroverbs: announces-devices` says that the
//! drivers of this file are worth loading on a machine whose kernel has no RDMA device.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

/// The comment that marks drivers of devices without a kernel device.
pub const ANNOUNCES: &str = "ferroverbs: announces-devices";

/// A driver that a file enables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// The plugin's name, or the beginning of an absolute path.
    pub name: String,
    /// The file carries the [`ANNOUNCES`] comment.
    pub announces: bool,
}

/// A line nobody understands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// The file.
    pub file: PathBuf,
    /// Its line, from 1.
    pub line: usize,
    /// What it says.
    pub text: String,
}

impl std::fmt::Display for BadLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}:{}: expected `driver NAME`, ignoring `{}`",
            self.file.display(),
            self.line,
            self.text
        )
    }
}

/// What a directory says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Drivers in the order in which they are loaded: rdma-core's, the last one read first.
    pub directives: Vec<Directive>,
    /// Lines that were ignored.
    pub bad: Vec<BadLine>,
}

/// Reads all files of a directory.
///
/// # Errors
/// The directory can't be read. Files that can't be read are skipped.
pub fn read(folder: &Path) -> std::io::Result<Contents> {
    let mut contents = Contents::default();
    for entry in std::fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        if !std::fs::metadata(&path).is_ok_and(|data| data.is_file()) {
            continue;
        }
        if let Ok(text) = std::fs::read(&path) {
            parse(&path, &String::from_utf8_lossy(&text), &mut contents);
        }
    }
    contents.directives.reverse();
    Ok(contents)
}

/// Appends what one file says, in reading order.
fn parse(file: &Path, text: &str, into: &mut Contents) {
    let blank = |c: char| c.is_ascii_whitespace();
    let announces = text.lines().any(|line| {
        line.trim_start_matches(blank)
            .strip_prefix('#')
            .is_some_and(|comment| comment.trim() == ANNOUNCES)
    });
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start_matches(blank);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("driver"), Some(name)) => {
                into.directives.push(Directive { name: name.to_owned(), announces });
            }
            _ => into.bad.push(BadLine {
                file: file.to_owned(),
                line: index + 1,
                text: line.trim_end().to_owned(),
            }),
        }
    }
}

/// Splits a list of drivers in an environment variable: `:` and `;` separate.
pub fn split_list(list: &str) -> Vec<String> {
    list.split([':', ';']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Contents {
        let mut contents = Contents::default();
        parse(Path::new("x.driver"), text, &mut contents);
        contents
    }

    fn names(contents: &Contents) -> Vec<&str> {
        contents.directives.iter().map(|directive| directive.name.as_str()).collect()
    }

    #[test]
    fn a_file_enables_the_drivers_it_names() {
        let contents =
            parsed("# comment\n\n  driver mlx5\n\tdriver\trxe trailing words\ndriver /opt/x\n");
        assert_eq!(names(&contents), ["mlx5", "rxe", "/opt/x"]);
        assert!(contents.bad.is_empty());
    }

    #[test]
    fn a_line_that_is_no_directive_is_reported_with_its_place() {
        let contents = parsed("driver a\ndrivers b\ndriver\n");
        assert_eq!(names(&contents), ["a"]);
        assert_eq!(contents.bad.iter().map(|bad| bad.line).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(
            contents.bad[0].to_string(),
            "x.driver:2: expected `driver NAME`, ignoring `drivers b`"
        );
    }

    #[test]
    fn the_announcing_comment_marks_the_whole_file() {
        assert!(parsed("driver soft\n# ferroverbs: announces-devices\n").directives[0].announces);
        assert!(!parsed("driver soft # ferroverbs: announces-devices\n").directives[0].announces);
    }

    #[test]
    fn a_directory_loads_the_last_driver_first_and_skips_what_is_no_file() {
        let folder = std::env::temp_dir().join(format!("fv-config-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("folder.driver")).expect("a directory");
        std::fs::write(folder.join("any name"), "driver one\ndriver two\n").expect("a file");
        let contents = read(&folder).expect("readable");
        assert_eq!(names(&contents), ["two", "one"]);
        std::fs::remove_dir_all(&folder).expect("cleaning up");
        assert!(read(&folder).is_err());
    }

    #[test]
    fn colons_and_semicolons_separate_names_in_a_variable() {
        assert_eq!(split_list("a:b;;c"), ["a", "b", "c"]);
        assert!(split_list("").is_empty());
    }
}
