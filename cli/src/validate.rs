//! `ferroverbs validate` and `ferroverbs explain`: a program under the layer that checks how verbs are used, and what its messages mean.

use crate::run;
use std::io::Write;
use std::process::ExitCode;

/// The pages; a heading for each check.
const PAGES: &str = include_str!("../../docs/reference/checks.md");

/// What the command line of `validate` says.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Settings, such as 'off=MR-04:exitcode=66:json=FILE': see ferroverbs-layers(7)
    #[arg(short = 'o', value_name = "SETTINGS")]
    pub(crate) settings: Option<String>,
    #[command(flatten)]
    pub(crate) run: run::Args,
}

/// Becomes the command, under the layer.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    let mut variables = vec![run::layers("validate")];
    if let Some(settings) = &args.settings {
        variables.push(("FERROVERBS_VALIDATE", settings.clone()));
    }
    run::with(&args.run, &variables)
}

/// What the command line of `explain` says.
#[derive(Debug, clap::Args)]
pub(crate) struct Explain {
    /// A check, such as MR-01; all of them with a line each, if there is none
    #[arg(value_name = "ID")]
    id: Option<String>,
}

/// Prints the page of a check.
pub(crate) fn explain(args: &Explain) -> crate::Result<ExitCode> {
    let text = match &args.id {
        Some(id) => page(id)
            .ok_or_else(|| format!("there is no check {id}; `ferroverbs explain` lists them"))?,
        None => pages().map(|(title, _)| format!("{title}\n")).collect(),
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(|e| format!("cannot write: {e}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Title and text of each check.
fn pages() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGES.split("\n## ").skip(1).filter_map(|page| {
        let (title, text) = page.split_once('\n')?;
        let (id, _) = title.split_once(": ")?;
        (id.len() == 5 && id.as_bytes().get(2) == Some(&b'-')).then_some((title, text))
    })
}

fn page(id: &str) -> Option<String> {
    let id = id.to_ascii_uppercase();
    let (title, text) = pages().find(|(title, _)| title.split(':').next() == Some(&id))?;
    Some(format!("{title}\n\n{}\n", text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_a_page_and_no_other_heading_is_one() {
        let text = page("mr-01").expect("a page");
        assert!(text.starts_with("MR-01: ") && text.contains("Remedy:"), "{text}");
        assert!(page("XX-01").is_none() && page("").is_none());
        assert!(pages().count() >= 39);
    }
}
