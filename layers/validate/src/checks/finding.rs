//! The result of a check: its id, and the text and remedy of a message. The functions of `checks`
//! return findings, and `report` writes them.

use super::Id;

/// Frames of a stack.
pub(crate) const DEPTH: usize = 8;

/// Return addresses, the innermost first; 0 after the last.
pub(crate) type Stack = [usize; DEPTH];

/// A second place in the program that matters for a message: its meaning, and its stack.
pub(crate) type Origin = (&'static str, Stack);

/// An error that a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) id: Id,
    pub(crate) text: String,
    pub(crate) remedy: String,
    pub(crate) origin: Option<Origin>,
}

/// All errors that a check found.
pub(crate) type Findings = Vec<Finding>;

impl Finding {
    pub(crate) fn new(id: Id, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { id, text: text.into(), remedy: remedy.into(), origin: None }
    }

    /// Adds the second place.
    pub(crate) fn from(self, origin: Option<Origin>) -> Self {
        Self { origin, ..self }
    }
}

/// The first names, and the number of further names.
pub(crate) fn list(names: &[String]) -> String {
    let shown = names.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > 4 { format!("{shown} and {} more", names.len() - 4) } else { shown }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// The ids of findings.
    pub(crate) fn ids(findings: &[Finding]) -> Vec<Id> {
        findings.iter().map(|finding| finding.id).collect()
    }

    /// The text of the only finding.
    pub(crate) fn text(findings: &[Finding]) -> &str {
        let [finding] = findings else { panic!("one finding: {findings:?}") };
        &finding.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("qp {number:#x}")).collect()
    }

    #[test]
    fn a_list_of_four_names_is_complete() {
        assert_eq!(list(&names(4)), "qp 0x0, qp 0x1, qp 0x2, qp 0x3");
    }

    #[test]
    fn a_longer_list_ends_with_the_number_of_further_names() {
        assert_eq!(list(&names(6)), "qp 0x0, qp 0x1, qp 0x2, qp 0x3 and 2 more");
    }

    #[test]
    fn an_empty_list_has_no_text() {
        assert_eq!(list(&[]), "");
    }

    #[test]
    fn a_finding_has_no_second_place_unless_one_is_added() {
        let finding = Finding::new(Id::Mr01, "text", "remedy");
        assert_eq!(finding.origin, None);
        let origin = Some(("the region was registered", [1; DEPTH]));
        assert_eq!(finding.from(origin).origin, origin);
    }
}
