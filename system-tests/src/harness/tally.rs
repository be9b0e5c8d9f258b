//! What a check found.

/// The results of a check: one for each part.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    passed: usize,
    failures: Vec<String>,
    skips: Vec<String>,
}

impl Tally {
    /// Counts one result.
    pub(crate) fn record(&mut self, name: &str, result: Result<(), String>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(report) => self.failures.push(format!("{name}: {report}")),
        }
    }

    /// Counts a part that was not run, and says why.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        self.skips.push(format!("{name}: {reason}"));
    }

    /// Counts `n` results that another harness found good.
    pub(crate) fn add_passed(&mut self, n: usize) {
        self.passed += n;
    }

    /// Withdraws a success that a foreign harness counted before it reported the test as skipped.
    pub(crate) fn was_skipped(&mut self, name: &str, reason: &str) {
        self.passed = self.passed.saturating_sub(1);
        self.skip(name, reason);
    }

    /// Adds a failure whose report includes a name.
    pub(crate) fn fail(&mut self, report: String) {
        self.failures.push(report);
    }

    /// Adds lines to the first failure.
    pub(crate) fn explain(&mut self, details: &str) {
        if let Some(first) = self.failures.first_mut() {
            *first = format!("{first}\n{details}");
        }
    }

    /// How many results were good.
    pub(crate) fn passed(&self) -> usize {
        self.passed
    }

    /// What failed: a name, a colon, and a report.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// What was not run: a name, a colon, and the reason.
    pub(crate) fn skips(&self) -> &[String] {
        &self.skips
    }
}
