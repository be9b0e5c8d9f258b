//! `ferroverbs validate` runs a program under the layer that reports misuse of verbs.
//! `ferroverbs explain` prints the page of a check from the reference.

use crate::{output, run, settings};
use std::process::ExitCode;

/// The reference, a page for each family: a heading and a text for each check.
const PAGES: [&str; 6] = [
    include_str!("../../docs/reference/checks/regions.md"),
    include_str!("../../docs/reference/checks/queue-pairs.md"),
    include_str!("../../docs/reference/checks/requests.md"),
    include_str!("../../docs/reference/checks/completions.md"),
    include_str!("../../docs/reference/checks/objects.md"),
    include_str!("../../docs/reference/checks/connections.md"),
];

/// Whether `soft` behaves as the strictest adapter (ferroverbs-soft(7)).
const STRICT: &str = "FERROVERBS_SOFT_STRICT";

/// The arguments of `ferroverbs validate`.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Settings of the layer, such as 'off=MR-04:exitcode=66:json=FILE': see ferroverbs-layers(7)
    #[arg(short = 'o', value_name = "SETTINGS", value_parser = parse_settings)]
    pub(crate) settings: Option<String>,
    #[command(flatten)]
    pub(crate) run: run::Args,
}

/// Replaces this process by the command, under the layer.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    let mut variables = vec![run::add_layer("validate")];
    // What an adapter refuses is refused and explained. A variable that the user set decides.
    if std::env::var_os(STRICT).is_none_or(|value| value.is_empty()) {
        variables.push((STRICT, "1".to_owned()));
    }
    if let Some(settings) = &args.settings {
        variables.push(("FERROVERBS_VALIDATE", settings.clone()));
    }
    run::become_command(&args.run, &variables)
}

fn parse_settings(value: &str) -> Result<String, String> {
    settings::parse_layer_settings("validate", value)
}

/// The arguments of `ferroverbs explain`.
#[derive(Debug, clap::Args)]
pub(crate) struct Explain {
    /// The id of a check, such as MR-01; without an id, a line for each check
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
    output::print_text(&text)
}

/// The title and the text of each check.
fn pages() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGES.iter().flat_map(|page| page.split("\n## ").skip(1)).filter_map(|page| {
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
