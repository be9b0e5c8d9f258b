//! The result of a check of `ferroverbs doctor`.

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckState {
    /// Nothing is wrong.
    Ok,
    /// Programs work, with a limit that the finding names.
    Note,
    /// Programs fail.
    Missing,
    /// This user may not read the facts.
    Unknown,
}

impl CheckState {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
        }
    }
}

/// A checked fact about the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    /// The name of the check, which is the same in later versions.
    pub(super) id: &'static str,
    pub(super) state: CheckState,
    pub(super) finding: String,
    /// A command, or another action that helps.
    pub(super) remedy: Option<String>,
}

impl Check {
    pub(super) fn new(id: &'static str, state: CheckState, finding: impl Into<String>) -> Self {
        Self { id, state, finding: finding.into(), remedy: None }
    }

    pub(super) fn ok(id: &'static str, finding: impl Into<String>) -> Self {
        Self::new(id, CheckState::Ok, finding)
    }

    pub(super) fn note(id: &'static str, finding: impl Into<String>) -> Self {
        Self::new(id, CheckState::Note, finding)
    }

    pub(super) fn missing(
        id: &'static str,
        finding: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(id, CheckState::Missing, finding).remedy(remedy)
    }

    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}
