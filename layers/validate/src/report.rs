//! Messages for people and tools: check, call, object, values, place in the program, remedy, and
//! the setting that silences the check.

use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;

use cface::shared::StaticMutex;

use crate::checks::finding::{Finding, Findings};
use crate::checks::{CHECKS, Id, Level};
use crate::settings::settings;
use crate::stack::{self, Stack};

/// Most places of a check that are remembered.
const MAX_SITES: usize = 4096;

struct Counts {
    /// Number of messages by check, innermost frame and subject.
    by_site: BTreeMap<(Id, usize, usize), u64>,
    /// Shown and all messages by check.
    counts: BTreeMap<Id, (u32, u64)>,
}

static COUNTS: StaticMutex<Counts> =
    StaticMutex::new(Counts { by_site: BTreeMap::new(), counts: BTreeMap::new() });
static NUMBER: AtomicU32 = AtomicU32::new(0);
static ANY_ERROR: AtomicBool = AtomicBool::new(false);

/// The queue pair of a message. Later messages about the QP may follow from its first message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    /// Address of the QP.
    pub(crate) qp_address: usize,
    /// The number of the first message about the QP; 0 for none.
    pub(crate) first_message: &'a AtomicU32,
}

thread_local! {
    /// Number of findings of this thread, including those that were not shown.
    static FOUND: Cell<u32> = const { Cell::new(0) };
}

/// The number of findings of this thread so far.
#[inline]
pub(crate) fn finding_count() -> u32 {
    FOUND.try_with(Cell::get).unwrap_or(0)
}

/// For a fork: no thread writes a message until the result is dropped.
pub(crate) fn hold() -> cface::lock::Guard {
    COUNTS.hold()
}

/// Whether a check is on.
#[inline]
pub(crate) fn is_enabled(id: Id) -> bool {
    settings().enabled[id as usize]
}

/// The result of a check. Most calls have no finding, so the test for none is cheap and inlined.
pub(crate) trait CheckResult {
    fn has_findings(&self) -> bool;
    fn each(&self, write: &mut dyn FnMut(&Finding));
}

impl CheckResult for Option<Finding> {
    #[inline(always)]
    fn has_findings(&self) -> bool {
        self.is_some()
    }

    fn each(&self, write: &mut dyn FnMut(&Finding)) {
        self.iter().for_each(write);
    }
}

impl CheckResult for Findings {
    #[inline(always)]
    fn has_findings(&self) -> bool {
        !self.is_empty()
    }

    fn each(&self, write: &mut dyn FnMut(&Finding)) {
        self.iter().for_each(write);
    }
}

impl CheckResult for [Finding; 1] {
    #[inline(always)]
    fn has_findings(&self) -> bool {
        true
    }

    fn each(&self, write: &mut dyn FnMut(&Finding)) {
        self.iter().for_each(write);
    }
}

/// Writes the findings of a call. `object` is evaluated only if a check found something.
#[inline(always)]
pub(crate) fn report(
    call: &str,
    object: impl Fn() -> String,
    findings: impl CheckResult,
    qp: Option<About<'_>>,
) {
    if findings.has_findings() {
        write_all(call, &object, &findings, qp);
    }
}

#[cold]
#[inline(never)]
fn write_all(
    call: &str,
    object: &dyn Fn() -> String,
    findings: &dyn CheckResult,
    qp: Option<About<'_>>,
) {
    findings.each(&mut |finding| {
        emit(call, &object(), finding, qp);
    });
}

/// Writes a message, unless its place or its check was reported often enough. Returns the number of
/// the message.
#[cold]
pub(crate) fn emit(
    call: &str,
    object: &str,
    finding: &Finding,
    qp: Option<About<'_>>,
) -> Option<u32> {
    let settings = settings();
    let check = finding.id.check();
    let is_wanted = is_enabled(finding.id);
    if is_wanted || !check.optional {
        let _ = FOUND.try_with(|found| found.set(found.get().wrapping_add(1)));
    }
    if !is_wanted {
        return None;
    }
    if check.level == Level::Error {
        ANY_ERROR.store(true, Ordering::Relaxed);
    }
    let stack = stack::current_stack();
    let mut told = COUNTS.lock();
    // All completions are polled at one place, so the QP tells these messages apart.
    let whose = match finding.id {
        Id::Cq03
        | Id::Mr11
        | Id::Mr15
        | Id::Qp09
        | Id::Qp17
        | Id::Qp18
        | Id::Qp19
        | Id::Qp20
        | Id::Wr16 => qp.map_or(0, |qp| qp.qp_address),
        // One call may close several devices.
        Id::Mr13 => finding.origin.map_or(0, |(_, made)| made[1]),
        _ => stack[1],
    };
    let place = (finding.id, stack[0], whose);
    let room = told.by_site.len() < MAX_SITES;
    let is_new = match told.by_site.get_mut(&place) {
        Some(count) => {
            *count += 1;
            false
        }
        None if room => told.by_site.insert(place, 1).is_none(),
        None => false,
    };
    let count = told.counts.entry(finding.id).or_default();
    count.1 += 1;
    if !(is_new || settings.repeat) || count.0 >= settings.max {
        return None;
    }
    count.0 += 1;
    // The lock is held during the output, so messages do not mix.
    let number = NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
    let follows = qp.map_or(0, |qp| {
        if check.level == Level::Warning {
            return qp.first_message.load(Ordering::Relaxed);
        }
        let first =
            qp.first_message.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
        first.err().unwrap_or(0)
    });
    let message = Message { call, object, finding };
    write_text(&message, number, follows, &stack);
    if let Some(path) = &settings.json {
        append(path, &json(&message, number, follows, &stack));
    }
    drop(told);
    if settings.abort && check.level == Level::Error {
        std::process::abort();
    }
    Some(number)
}

/// A message, as it is written.
struct Message<'a> {
    /// The verb that the program called.
    call: &'a str,
    object: &'a str,
    finding: &'a Finding,
}

fn write_text(message: &Message<'_>, number: u32, follows: u32, stack: &Stack) {
    let settings = settings();
    let Message { call, object, finding } = message;
    let Finding { id, text, remedy, origin } = finding;
    let check = id.check();
    let mut out =
        format!("ferroverbs validate: #{number} {} {}: {call}", check.id, check.level.name());
    if !object.is_empty() {
        let _ = write!(out, ", {object}");
    }
    let _ = writeln!(out, ": {text}");
    if follows != 0 {
        let _ = writeln!(out, "    this may follow from #{follows}");
    }
    if settings.stack {
        for line in stack::lines(stack) {
            let _ = writeln!(out, "    at {line}");
        }
        if let Some((what, stack)) = origin {
            let _ = writeln!(out, "  {what}");
            for line in stack::lines(stack) {
                let _ = writeln!(out, "    at {line}");
            }
        }
    }
    let _ = writeln!(out, "    remedy: {remedy}");
    let _ = writeln!(
        out,
        "    more: ferroverbs explain {id}; silence: FERROVERBS_VALIDATE=off={id}",
        id = check.id
    );
    write_note(&out);
}

/// Writes lines that are no message of a check.
pub(crate) fn write_note(text: &str) {
    match &settings().log {
        Some(path) => append(path, text),
        None => cface::notice::lines(text),
    }
}

/// Appends by one write, so lines of several processes do not mix. An unwritable file was reported
/// at the start.
fn append(path: &std::path::Path, text: &str) {
    if let Ok(mut file) = File::options().create(true).append(true).open(path) {
        let _ = file.write_all(text.as_bytes());
    }
}

fn json(message: &Message<'_>, number: u32, follows: u32, stack: &Stack) -> String {
    let Message { call, object, finding } = message;
    let check = finding.id.check();
    let frames: Vec<String> = stack::lines(stack).iter().map(|line| quoted(line)).collect();
    format!(
        "{{\"id\":{},\"level\":{},\"number\":{number},\"follows\":{follows},\"program\":{},\"pid\":{},\"thread\":{},\
         \"call\":{},\"object\":{},\"message\":{},\"remedy\":{},\"stack\":[{}]}}\n",
        quoted(check.id),
        quoted(check.level.name()),
        quoted(&program()),
        std::process::id(),
        layer_tap::thread(),
        quoted(call),
        quoted(object),
        quoted(&finding.text),
        quoted(&finding.remedy),
        frames.join(",")
    )
}

/// The name of the program's file.
fn program() -> String {
    let exe = std::env::current_exe().unwrap_or_default();
    exe.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Runs at exit: reports the number of suppressed messages, and sets the exit status of the
/// settings.
pub(crate) fn finish() {
    let settings = settings();
    let told = COUNTS.lock();
    let mut out = String::new();
    for (id, (shown, all)) in &told.counts {
        let more = all - u64::from(*shown);
        if more > 0 {
            let id = CHECKS[*id as usize].id;
            let _ = writeln!(out, "ferroverbs validate: {more} more of {id} were not shown");
        }
    }
    match &settings.log {
        Some(path) if !out.is_empty() => append(path, &out),
        _ => cface::notice::lines(&out),
    }
    if settings.exitcode != 0 && ANY_ERROR.load(Ordering::Relaxed) {
        crate::native::exit(settings.exitcode as c_int);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_is_one_line_whatever_is_in_it() {
        assert_eq!(quoted("a\"b\\c\nd"), "\"a\\\"b\\\\c\\u000ad\"");
    }
}
