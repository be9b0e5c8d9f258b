//! The files of a `libibverbs.d` directory.
//!
//! Grammar, as rdma-core reads it: leading blanks are skipped, empty lines and lines that start
//! with `#` are ignored, anything else must be the word `driver` and a name. Every regular file of
//! the directory counts, under any name.
//!
//! Two comments have a meaning that rdma-core does not know. `# ferroverbs: announces-devices`: the
//! drivers of this file are worth loading where the kernel has no RDMA device. `# ferroverbs:
//! only-without-kernel-devices, unless VARIABLE is set`: where the kernel has a device, the drivers
//! need not be loaded.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The comment that marks drivers of devices without a kernel device.
pub const ANNOUNCES: &str = "ferroverbs: announces-devices";

/// The beginning of the comment that marks drivers with nothing to announce beside devices of the
/// kernel.
pub const ONLY_WITHOUT: &str = "ferroverbs: only-without-kernel-devices";

/// A driver that a file enables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// The plugin's name, or the beginning of an absolute path.
    pub name: String,
    /// The file carries the [`ANNOUNCES`] comment.
    pub announces: bool,
    /// The file carries the [`ONLY_WITHOUT`] comment.
    pub only_without: Option<OnlyWithout>,
}

/// Drivers that announce no devices beside kernel devices, unless a variable requests them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnlyWithout {
    /// The environment variable that requests the drivers beside kernel devices, if the file names
    /// one.
    pub unless: Option<String>,
}

/// An ignored part of a file, for a message of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// Lines with invalid syntax.
    Lines {
        /// The file.
        file: PathBuf,
        /// The number of the first line, from 1.
        line: usize,
        /// The beginning of the line's text.
        text: String,
        /// Number of further lines.
        further_lines: usize,
    },
    /// A file that is too long to be a configuration file; all of it is ignored.
    TooLong(PathBuf),
}

impl std::fmt::Display for Ignored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lines { file, line, text, further_lines: more } => {
                write!(f, "{}:{line}: expected `driver NAME`, ignoring `{text}`", file.display())?;
                match more {
                    0 => Ok(()),
                    more => write!(f, " and {more} more lines"),
                }
            }
            Self::TooLong(file) => {
                write!(f, "{}: longer than {LARGEST_FILE} bytes, ignoring it", file.display())
            }
        }
    }
}

/// The largest accepted size of a file in bytes; distributions' files have one line.
pub const LARGEST_FILE: u64 = 64 * 1024;
/// Bytes of a driver's name, which may be the beginning of a path.
const LONGEST_NAME: usize = 1024;
/// Characters of a line that are repeated to a person.
const SHOWN_CHARS: usize = 60;

/// The content of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigFolder {
    /// Drivers in the order in which they are loaded: rdma-core's, the last one read first.
    pub directives: Vec<Directive>,
    /// Ignored parts, at most one for each file.
    pub ignored: Vec<Ignored>,
}

/// Reads those files of a directory whose names are `wanted`.
///
/// # Errors
/// The directory can't be read. Files that can't be read are skipped.
pub fn read(folder: &Path, wanted: impl Fn(&OsStr) -> bool) -> std::io::Result<ConfigFolder> {
    let mut contents = ConfigFolder::default();
    for entry in std::fs::read_dir(folder)?.flatten() {
        if !wanted(&entry.file_name()) {
            continue;
        }
        let path = entry.path();
        // The folder tells the kind, unless it is a link.
        let is_file = match entry.file_type() {
            Ok(kind) if kind.is_file() => true,
            Ok(kind) if kind.is_dir() => false,
            _ => std::fs::metadata(&path).is_ok_and(|data| data.is_file()),
        };
        if !is_file {
            continue;
        }
        match read_start(&path) {
            Ok(text) if text.len() as u64 > LARGEST_FILE => {
                contents.ignored.push(Ignored::TooLong(path));
            }
            Ok(text) => parse(&path, &String::from_utf8_lossy(&text), &mut contents),
            Err(_) => {}
        }
    }
    contents.directives.reverse();
    Ok(contents)
}

/// Reads a regular file, or enough bytes to show that the file is too long. One read suffices for
/// most files, because every program reads all of them.
fn read_start(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(path)?;
    let mut text = vec![0; 1024];
    let len = file.read(&mut text)?;
    let complete = len < text.len();
    text.truncate(len);
    if !complete {
        file.take(LARGEST_FILE + 1 - len as u64).read_to_end(&mut text)?;
    }
    Ok(text)
}

/// Appends the directives of one file, in reading order.
pub(crate) fn parse(file: &Path, text: &str, into: &mut ConfigFolder) {
    let blank = is_blank;
    let announces = text.lines().any(|line| {
        line.trim_start_matches(blank)
            .strip_prefix('#')
            .is_some_and(|comment| comment.trim() == ANNOUNCES)
    });
    let only_without = text.lines().find_map(|line| {
        let comment = line.trim_start_matches(blank).strip_prefix('#')?.trim();
        let rest = comment.strip_prefix(ONLY_WITHOUT)?;
        let unless = rest.strip_prefix(", unless ").and_then(|rest| rest.strip_suffix(" is set"));
        Some(OnlyWithout { unless: unless.map(str::to_owned) })
    });
    let mut bad = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start_matches(blank);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.split(blank).filter(|word| !word.is_empty());
        match (words.next(), words.next()) {
            (Some("driver"), Some(name)) if name.len() <= LONGEST_NAME => {
                into.directives.push(Directive {
                    name: name.to_owned(),
                    announces,
                    only_without: only_without.clone(),
                });
            }
            _ => {
                let (.., more) = bad.get_or_insert((index + 1, printable_start(line), 0_usize));
                *more += 1;
            }
        }
    }
    if let Some((line, text, lines)) = bad {
        let more = lines.saturating_sub(1);
        into.ignored.push(Ignored::Lines {
            file: file.to_owned(),
            line,
            text,
            further_lines: more,
        });
    }
}

/// Whether a character separates words: isspace(3), which includes the vertical tab, unlike Rust.
pub(crate) fn is_blank(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\x0b'
}

/// The beginning of a line, without what would upset a terminal.
fn printable_start(line: &str) -> String {
    let line = line.trim_end();
    let mut text: String = line
        .chars()
        .take(SHOWN_CHARS)
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if line.chars().nth(SHOWN_CHARS).is_some() {
        text.push('…');
    }
    text
}

/// Splits a list of drivers in an environment variable: `:` and `;` separate.
pub fn split_list(list: &str) -> Vec<String> {
    list.split([':', ';']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> ConfigFolder {
        let mut contents = ConfigFolder::default();
        parse(Path::new("x.driver"), text, &mut contents);
        contents
    }

    fn names(contents: &ConfigFolder) -> Vec<&str> {
        contents.directives.iter().map(|directive| directive.name.as_str()).collect()
    }

    #[test]
    fn a_vertical_tab_ends_a_name_as_it_does_for_sscanf() {
        let contents = parsed("\x0bdriver\x0bmlx5\x0bmore\n");
        assert_eq!(contents.directives[0].name, "mlx5");
        assert!(contents.ignored.is_empty());
    }

    #[test]
    fn a_file_enables_the_drivers_it_names() {
        let contents =
            parsed("# comment\n\n  driver mlx5\n\tdriver\trxe trailing words\ndriver /opt/x\n");
        assert_eq!(names(&contents), ["mlx5", "rxe", "/opt/x"]);
        assert!(contents.ignored.is_empty());
    }

    #[test]
    fn a_comment_restricts_a_driver_to_hosts_without_kernel_devices() {
        let of = |text| parsed(text).directives.remove(0).only_without;
        assert_eq!(of("driver soft\n"), None);
        let plain = "driver soft\n# ferroverbs: only-without-kernel-devices\n";
        assert_eq!(of(plain), Some(OnlyWithout { unless: None }));
        let unless = "# ferroverbs: only-without-kernel-devices, unless S_X is set\ndriver soft\n";
        assert_eq!(of(unless), Some(OnlyWithout { unless: Some("S_X".into()) }));
    }

    #[test]
    fn a_line_that_is_no_directive_is_reported_with_its_place() {
        let contents = parsed("driver a\ndrivers b\ndriver\n");
        assert_eq!(names(&contents), ["a"]);
        let reported: Vec<_> = contents.ignored.iter().map(ToString::to_string).collect();
        assert_eq!(
            reported,
            ["x.driver:2: expected `driver NAME`, ignoring `drivers b` and 1 more lines"]
        );
    }

    #[test]
    fn control_characters_and_long_lines_are_reported_in_one_short_line() {
        let contents = parsed(&format!("\u{1b}[2J\0{}", "x".repeat(10_000)));
        let reported = contents.ignored[0].to_string();
        assert!(reported.len() < 200 && reported.chars().all(|c| !c.is_control()), "{reported:?}");
        let contents = parsed(&format!("driver {}\n", "x".repeat(LONGEST_NAME + 1)));
        assert_eq!((contents.directives.len(), contents.ignored.len()), (0, 1));
    }

    #[test]
    fn an_endless_file_is_not_read_to_its_end() {
        let folder = std::env::temp_dir().join(format!("fv-config-long-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a directory");
        let path = folder.join("endless.driver");
        // A sparse file of a terabyte.
        std::fs::File::create(&path).and_then(|file| file.set_len(1 << 40)).expect("a sparse file");
        std::fs::write(folder.join("good"), "driver a\n").expect("a file");
        let contents = read(&folder, |_| true).expect("readable");
        std::fs::remove_dir_all(&folder).expect("cleaning up");
        assert_eq!(names(&contents), ["a"]);
        assert_eq!(contents.ignored, [Ignored::TooLong(path)]);
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
        let contents = read(&folder, |_| true).expect("readable");
        assert_eq!(names(&contents), ["two", "one"]);
        std::fs::remove_dir_all(&folder).expect("cleaning up");
        assert!(read(&folder, |_| true).is_err());
    }

    #[test]
    fn colons_and_semicolons_separate_names_in_a_variable() {
        assert_eq!(split_list("a:b;;c"), ["a", "b", "c"]);
        assert!(split_list("").is_empty());
    }
}
