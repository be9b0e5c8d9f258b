//! A record as a JSON object.

use layer_records::calls::{Arg, Call, Kind};
use layer_records::trace::{Record, Trace};
use layer_records::{names, text};
use serde_json::{Map, Value, json};

/// Its arguments; numbers stay numbers, what has a name is a string.
pub(super) fn args(record: &Record) -> Map<String, Value> {
    let value = |arg: &Arg| match arg.kind {
        Kind::Dec if arg.bits() == 64 => json!(record.arg(arg).cast_signed()),
        Kind::Dec | Kind::Hex => json!(record.arg(arg)),
        _ => json!(text::value(record, arg)),
    };
    record.said().map(|arg| (arg.name.to_owned(), value(arg))).collect()
}

/// All of it.
pub(super) fn object(trace: &Trace, record: &Record) -> Value {
    let mut object = json!({
        "time_ns": trace.time(record),
        "pid": trace.pid,
        "thread": record.thread,
        "call": record.call.name(),
        "args": args(record),
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
