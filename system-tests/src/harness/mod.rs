//! The harness: definition of a check, its tier, load and result.
//!
//! Groups register checks ([`Checks`]). `libtest-mimic` runs the checks, so names, filters and
//! `--list` are those of `cargo test`. The [`gate`] starts a check when the machine has free
//! processors.

mod check;
mod gate;
mod junit;
mod options;
mod summary;
mod tally;

pub(crate) use check::{Check, Checks, Load, Tier};
pub(crate) use options::Options;
pub(crate) use tally::Tally;

use crate::bench::Bench;
use crate::{GROUPS, Group};
use gate::Gate;
use libtest_mimic::{Completion, Failed, Trial};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use summary::{Record, Summary};

/// Checks that wait at the gate take a thread each, which costs nothing else.
const THREADS: usize = 48;

/// Runs the checks that the command line asks for.
pub(crate) fn main(words: Vec<String>) -> ExitCode {
    let options = match Options::parse(words) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("system-tests: {message}");
            return ExitCode::from(2);
        }
    };
    let checks = match chosen(&options) {
        Ok(checks) => checks,
        Err(message) => {
            eprintln!("system-tests: {message}");
            return ExitCode::from(2);
        }
    };
    if options.groups {
        print!("{}", summary::groups(&checks));
        return ExitCode::SUCCESS;
    }
    match run(&options, checks) {
        Ok(status) => status,
        Err(message) => {
            eprintln!("system-tests: {}", message.trim_end());
            ExitCode::from(2)
        }
    }
}

/// The checks of all groups that are named, or of all groups.
fn chosen(options: &Options) -> crate::Result<Vec<Check>> {
    let mut checks = Vec::new();
    for group in GROUPS {
        let mut list = Checks::new(group.name);
        (group.register)(&mut list);
        checks.extend(list.into_list().into_iter().filter(|check| options.wants(&check.name)));
    }
    if let Some(word) = options.unmatched(&checks) {
        return Err(format!("no check's name begins with {word:?}; --list shows them"));
    }
    Ok(checks)
}

fn run(options: &Options, checks: Vec<Check>) -> crate::Result<ExitCode> {
    let bench: &'static Bench = Box::leak(Box::new(Bench::new()?));
    let gate = Arc::new(Gate::new());
    let records = Arc::new(Mutex::new(Vec::new()));
    let mut phases = [Vec::new(), Vec::new()];
    for check in checks {
        let alone = check.load == Load::Alone;
        let trial = trial(check, options, bench, &gate, &records);
        phases[usize::from(alone)].push(trial);
    }
    let mut arguments = options.harness.clone();
    if arguments.list {
        libtest_mimic::run(&arguments, phases.into_iter().flatten().collect()).exit();
    }
    let begin = Instant::now();
    // The stage is built before the first check, so that no check's time limit has to hold a build.
    let any = phases.iter().flatten().any(|trial| !filtered_out(&arguments, trial));
    if any && options.needs_stage() {
        bench.prefix()?;
    }
    let [together, alone] = phases;
    let mut failed = false;
    for (trials, threads) in [(together, options.threads.unwrap_or(THREADS)), (alone, 1)] {
        if trials.iter().all(|trial| filtered_out(&arguments, trial)) {
            continue;
        }
        arguments.test_threads = Some(threads);
        failed |= libtest_mimic::run(&arguments, trials).has_failed();
    }
    let records = std::mem::take(&mut *records.lock().unwrap_or_else(PoisonError::into_inner));
    let summary = Summary::new(records, begin.elapsed());
    if let Some(file) = &options.junit {
        junit::write(file, &summary)?;
    }
    bench.clear();
    print!("{}", summary.render());
    let good = !failed && summary.passed() > 0 && summary.failed() == 0;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the arguments of `cargo test` leave a trial out.
fn filtered_out(arguments: &libtest_mimic::Arguments, trial: &Trial) -> bool {
    arguments.is_filtered_out(trial) || arguments.is_ignored(trial)
}

fn trial(
    check: Check,
    options: &Options,
    bench: &'static Bench,
    gate: &Arc<Gate>,
    records: &Arc<Mutex<Vec<Record>>>,
) -> Trial {
    let (gate, records) = (gate.clone(), records.clone());
    let under = options.under;
    let ignored = !options.selects(&check);
    let name = check.name.clone();
    Trial::ignorable_test(name, move || {
        let _permit = gate.enter(check.load);
        let begin = Instant::now();
        let name = check.name.clone();
        let tally = supervised(check, bench, under);
        let record = Record::new(name, tally, begin.elapsed());
        let result = completion(&record);
        records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        result
    })
    .with_ignored_flag(ignored)
}

/// The result of a check for `libtest-mimic`.
fn completion(record: &Record) -> Result<Completion, Failed> {
    if !record.tally.failures().is_empty() {
        let alone = format!("alone: cargo xtask test '{}'", record.name);
        return Err(format!("{}\n{alone}", record.tally.failures().join("\n")).into());
    }
    if record.tally.passed() == 0
        && let Some(reason) = record.tally.skips().first()
    {
        return Ok(Completion::ignored_with(reason));
    }
    Ok(Completion::Completed)
}

/// Runs a check on a thread of its own, which is left behind when the check exceeds its limit.
fn supervised(check: Check, bench: &'static Bench, under: bool) -> Tally {
    let (limit, group) = (check.limit, check.group);
    let (sender, receiver) = channel();
    let spawned = std::thread::Builder::new().name(check.name.clone()).spawn(move || {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let mut tally = Tally::default();
            let bench = bench.for_check(&check);
            let result = if under {
                crate::validate::unharmed(&bench, &mut tally, group, check.run)
            } else {
                (check.run)(&bench, &mut tally)
            };
            if let Err(why) = result {
                tally.record("it cannot be run", Err(why));
            }
            tally
        }));
        let _ = sender.send(caught);
    });
    let failed = |message: String| {
        let mut tally = Tally::default();
        tally.record("the check", Err(message));
        tally
    };
    if let Err(why) = spawned {
        return failed(format!("cannot have a thread: {why}"));
    }
    match receiver.recv_timeout(limit) {
        Ok(Ok(tally)) => tally,
        Ok(Err(panic)) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            failed(format!("panicked: {}", text.unwrap_or("without a message")))
        }
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            failed(format!("exceeded its limit of {} s", limit.as_secs()))
        }
    }
}

/// The default time limit of a check. A busy machine takes several times as long as a quiet one.
const LIMIT: Duration = Duration::from_secs(600);

/// The group of a name.
pub(crate) fn group(name: &str) -> Option<&'static Group> {
    GROUPS.iter().find(|group| group.name == name)
}
