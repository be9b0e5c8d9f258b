//! Results as JUnit XML, which continuous integration services read.

use super::summary::Summary;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// Writes `file`: a test suite for each group, a test case for each check.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(file: &Path, summary: &Summary) -> crate::Result<()> {
    let fail = |why: String| format!("cannot write {}: {why}", file.display());
    let out = File::create(file).map_err(|why| fail(why.to_string()))?;
    report(summary).serialize(out).map_err(|why| fail(why.to_string()))
}

fn report(summary: &Summary) -> Report {
    let mut report = Report::new("ferroverbs");
    report.set_time(summary.elapsed());
    let mut suites: BTreeMap<&str, TestSuite> = BTreeMap::new();
    for record in summary.records() {
        let tally = &record.tally;
        let status = match (tally.failures(), tally.skips()) {
            ([first, ..], _) => {
                let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                status.set_message(first.lines().next().unwrap_or_default());
                status.set_description(tally.failures().join("\n"));
                status
            }
            ([], [reason, ..]) if tally.passed() == 0 => {
                let mut status = TestCaseStatus::skipped();
                status.set_message(reason);
                status
            }
            _ => TestCaseStatus::success(),
        };
        let mut case = TestCase::new(record.name.clone(), status);
        case.set_time(record.elapsed);
        let suite = suites.entry(record.group());
        suite.or_insert_with(|| TestSuite::new(record.group())).add_test_case(case);
    }
    report.add_test_suites(suites.into_values());
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Tally;
    use crate::harness::summary::Record;
    use std::time::Duration;

    #[test]
    fn each_check_is_a_test_case_of_its_groups_suite() {
        let mut failed = Tally::default();
        failed.record("a", Err("what it said\nand more".into()));
        let mut skipped = Tally::default();
        skipped.skip("b", "no kernel");
        let mut good = Tally::default();
        good.record("c", Ok(()));
        let records = [("x::1", failed), ("x::2", skipped), ("y::1", good)];
        let records = records.into_iter();
        let records =
            records.map(|(name, tally)| Record::new(name.into(), tally, Duration::from_secs(1)));
        let summary = Summary::new(records.collect(), Duration::from_secs(3));
        let text = report(&summary).to_string().unwrap();
        assert!(text.contains("tests=\"3\" skipped=\"1\" failures=\"1\""), "{text}");
        assert!(text.contains("<testsuite name=\"x\" tests=\"2\" skipped=\"1\""), "{text}");
        assert!(text.contains("a: what it said") && text.contains("b: no kernel"), "{text}");
    }
}
