//! Converts a record to a JSON object.

use layer_records::calls::{Arg, Call, ValueKind};
use layer_records::trace::{Record, Trace};
use layer_records::{names, text};
use serde_json::{Map, Value, json};

/// The arguments of a record. Numbers stay numbers; named values are strings.
pub(super) fn arguments(record: &Record) -> Map<String, Value> {
    let value = |arg: &Arg| match arg.value_kind {
        ValueKind::Dec if arg.bits() == 64 => json!(record.arg(arg).cast_signed()),
        ValueKind::Dec | ValueKind::Hex => json!(record.arg(arg)),
        _ => json!(text::value(record, arg)),
    };
    record.shown_args().map(|arg| (arg.name.to_owned(), value(arg))).collect()
}

/// A record with its time, process, thread, call, arguments and result.
pub(super) fn record_object(trace: &Trace, record: &Record) -> Value {
    let mut object = json!({
        "time_ns": trace.time(record),
        "pid": trace.pid,
        "thread": record.thread,
        "call": record.call.name(),
        "args": arguments(record),
    });
    if record.call != Call::completion {
        object["result"] = json!(record.result.cast_signed());
        object["duration_ns"] = json!(record.duration);
        if record.error != 0 {
            object["errno"] = json!(names::errno(record.error));
        }
    }
    object
}
