//! `ferroverbs env`: prints the variables by which programs load Ferroverbs, for a shell or for the
//! environment file of a job of continuous integration.

use crate::{output, run, settings};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Command, ExitCode};

/// The arguments of `ferroverbs env`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Use LD_PRELOAD instead of LD_LIBRARY_PATH
    #[arg(short = 'p')]
    preload: bool,
    /// Software devices: off, on, or a number up to 32
    #[arg(short = 's', value_name = "SETTING", value_parser = settings::parse_devices)]
    soft: Option<String>,
    /// Faults to inject: see ferroverbs-soft(7)
    #[arg(short = 'f', value_name = "FAULTS", value_parser = settings::parse_faults)]
    faults: Option<String>,
    /// Who reads the variables
    #[arg(long, value_enum, default_value_t = Format::Sh)]
    format: Format,
}

/// The form of a list of variables.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// A shell: eval "$(ferroverbs env)"
    Sh,
    /// A file with a line NAME=VALUE for each variable: $GITHUB_ENV, or a dotenv report of GitLab
    File,
}

/// Runs `ferroverbs env`.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    // The command is never started; it holds the variables.
    let mut command = Command::new("true");
    let (soft, faults) = (args.soft.as_deref(), args.faults.as_deref());
    let variables = run::Variables { preload: args.preload, soft, faults, emulate: None };
    run::set_variables(&mut command, variables)?;
    let mut text = Vec::new();
    for (name, value) in command.get_envs() {
        let Some(value) = value else { continue };
        text.extend(line(args.format, name, value)?.into_vec());
    }
    output::print_bytes(&text)
}

fn line(format: Format, name: &OsStr, value: &OsStr) -> crate::Result<OsString> {
    let mut line = OsString::new();
    match format {
        Format::Sh => {
            line.push("export ");
            line.push(name);
            line.push("=");
            line.push(quoted(value));
        }
        Format::File if value.as_bytes().contains(&b'\n') => {
            let name = name.to_string_lossy();
            return Err(format!("{name} has a line break, which a file of variables cannot hold"));
        }
        Format::File => {
            line.push(name);
            line.push("=");
            line.push(value);
        }
    }
    line.push("\n");
    Ok(line)
}

/// `value` as one word of a shell.
fn quoted(value: &OsStr) -> OsString {
    let mut bytes = vec![b'\''];
    for byte in value.as_bytes() {
        match byte {
            b'\'' => bytes.extend(br"'\''"),
            byte => bytes.push(*byte),
        }
    }
    bytes.push(b'\'');
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_one_word_of_a_shell() {
        let of = |value: &str| line(Format::Sh, OsStr::new("A"), OsStr::new(value));
        assert_eq!(of("/a b/$c"), Ok("export A='/a b/$c'\n".into()));
        assert_eq!(of("it's"), Ok("export A='it'\\''s'\n".into()));
    }

    #[test]
    fn a_file_has_a_line_for_each_variable() {
        let of = |value: &str| line(Format::File, OsStr::new("A"), OsStr::new(value));
        assert_eq!(of("/a b"), Ok("A=/a b\n".into()));
        assert!(of("a\nB=c").is_err());
    }
}
