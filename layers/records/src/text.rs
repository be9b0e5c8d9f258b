//! A record of a trace as a line of text, in the manner of `strace(1)`. Used by the layer `trace`
//! and by `ferroverbs trace`.

use std::fmt::Write;
use std::net::Ipv6Addr;

use crate::calls::{Arg, Call, ValueKind};
use crate::names;
use crate::trace::{Record, Trace};

/// An argument as text.
#[must_use]
pub fn value(record: &Record, arg: &Arg) -> String {
    let value = record.arg(arg);
    let small = value as u32;
    let named = |name: Option<&str>| name.map_or_else(|| value.to_string(), str::to_owned);
    match arg.value_kind {
        // An argument of a full word may be negative, such as a descriptor.
        ValueKind::Dec if arg.bits == 64 => value.cast_signed().to_string(),
        ValueKind::Dec => value.to_string(),
        ValueKind::Hex => format!("{value:#x}"),
        ValueKind::Opcode => named(names::opcode(small)),
        ValueKind::SendFlags => names::send_flags(small),
        ValueKind::Status => named(names::status(small)),
        ValueKind::Completed => named(names::completed(small)),
        ValueKind::State => named(names::state(small)),
        ValueKind::QpType => named(names::kind(small)),
        ValueKind::Access => names::access(small),
        ValueKind::Event => named(names::event(small)),
        ValueKind::CmEvent => named(names::cm_event(small)),
        // IBTA 1.7 table 37: value 1 means 256 bytes.
        ValueKind::Mtu if (1..=5).contains(&value) => (128_u32 << small).to_string(),
        ValueKind::Mtu => value.to_string(),
        ValueKind::Text => format!("{:?}", record.text(arg)),
        ValueKind::Gid => Ipv6Addr::from(record.gid(arg)).to_string(),
    }
}

/// The text of the argument with this name; empty if the call has none.
#[must_use]
pub fn argument_text(record: &Record, name: &str) -> String {
    let arg = record.call.args().iter().find(|arg| arg.name == name);
    arg.map_or_else(String::new, |arg| value(record, arg))
}

/// Whether the record is a failed call or a completion with an error.
#[must_use]
pub fn failed(record: &Record) -> bool {
    record.error != 0 || (record.call == Call::completion && record.argument("status") != 0)
}

/// A line: time of day in UTC, process and thread, the call with its arguments, result and
/// duration.
#[must_use]
pub fn line(trace: &Trace, record: &Record) -> String {
    let time = trace.time(record);
    let (second, nanos) = (time / 1_000_000_000 % 86_400, time % 1_000_000_000);
    let mut line = format!(
        "{:02}:{:02}:{:02}.{nanos:09} {}/{} {}(",
        second / 3600,
        second / 60 % 60,
        second % 60,
        trace.pid,
        record.thread,
        record.call.name()
    );
    for (index, arg) in record.shown_args().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(line, "{comma}{}={}", arg.name, value(record, arg));
    }
    line.push(')');
    if record.call == Call::completion {
        return line;
    }
    let result = if record.result > u64::from(u32::MAX) && record.result.cast_signed() > 0 {
        format!("{:#x}", record.result)
    } else {
        record.result.cast_signed().to_string()
    };
    let _ = write!(line, " = {result}");
    if record.error != 0 {
        let _ = write!(line, " {}", names::errno(record.error));
    }
    // A duration of 0 was not measured.
    if record.duration == 0 {
        return line;
    }
    let _ = write!(
        line,
        " <{}.{:09}>",
        record.duration / 1_000_000_000,
        record.duration % 1_000_000_000
    );
    line
}

/// The heading above a process's lines.
#[must_use]
pub fn title(trace: &Trace) -> String {
    let lost = match trace.overwritten {
        0 => String::new(),
        lost => format!("; at least {lost} older ones had no room"),
    };
    format!(
        "{} (process {}): the last {} calls and completions{lost}",
        trace.program,
        trace.pid,
        trace.records.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::tests::{file, record};

    /// IBTA 1.7 table 37.
    #[test]
    fn an_mtu_is_written_in_bytes_and_an_unknown_value_as_a_number() {
        let text = |path_mtu: u64| {
            let mask = u64::from(abi::IBV_QP_PATH_MTU) << 32;
            argument_text(&record(Call::modify_qp, 0, &[mask, path_mtu << 16]), "path_mtu")
        };
        assert_eq!([1, 2, 3, 4, 5].map(text), ["256", "512", "1024", "2048", "4096"]);
        assert_eq!([0, 6, 255].map(text), ["0", "6", "255"]);
    }

    #[test]
    fn a_line_tells_what_was_asked_what_came_of_it_and_how_long_it_took() {
        let mut register =
            record(Call::reg_mr, 3_600_000_000_000, &[0x10, 0x2000, 4096, 0x2000, 5, 7 | 8 << 32]);
        register.result = 0x7f00_0000_1000;
        let mut refused = record(Call::destroy_cq, 3_600_000_000_001, &[0x30]);
        (refused.result, refused.error) = (16, 16);
        let args = [0x11 | 2 << 32, 0xabc, 2 | 1 << 32, 8, 0x2000, 8 | 9 << 32, 0, 0, 4];
        let send = record(Call::post_send, 3_600_000_000_002, &args);
        let wc = record(
            Call::completion,
            3_600_000_000_003,
            &[0x11 | 12 << 32, 0xabc, 0, 0, 0, 0x30, 3],
        );
        let trace = Trace::read(&file(&[register, refused, send, wc])).expect("a trace");
        let lines: Vec<String> = trace.records.iter().map(|record| line(&trace, record)).collect();
        assert_eq!(
            lines,
            [
                "01:00:00.000000600 77/78 ibv_reg_mr(pd=0x10, addr=0x2000, length=4096, iova=0x2000, access=LOCAL_WRITE|REMOTE_READ, lkey=0x7, rkey=0x8) = 0x7f0000001000 <0.000000007>",
                "01:00:00.000000601 77/78 ibv_destroy_cq(cq=0x30) = 16 EBUSY <0.000000007>",
                "01:00:00.000000602 77/78 ibv_post_send(qp=0x11, wr_id=0xabc, opcode=SEND, send_flags=SIGNALED, num_sge=1, bytes=8, sge0_addr=0x2000, sge0_length=8, sge0_lkey=0x9, message=4) = 0 <0.000000007>",
                "01:00:00.000000603 77/78 completion(qp=0x11, wr_id=0xabc, status=RETRY_EXC_ERR, cq=0x30)",
            ]
        );
        assert!(
            failed(&trace.records[1]) && failed(&trace.records[3]) && !failed(&trace.records[2])
        );
    }
}
