//! `ferroverbs ps`: the processes that use the software adapter, with their devices, QPs and peers.

mod reading;

use crate::output;
use reading::{Destination, QueuePair, SoftProcess};
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;

/// The arguments of `ferroverbs ps`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print an object in JSON
    #[arg(long)]
    json: bool,
    /// Processes; without a number, all processes that the user may read
    #[arg(value_name = "PID")]
    processes: Vec<u32>,
}

/// Runs `ferroverbs ps`.
///
/// # Errors
/// A process that is named does not use the adapter, or belongs to another user.
pub(crate) fn main(args: &Args) -> crate::Result<ExitCode> {
    let all = reading::processes()?;
    let is_known = |pid: &u32| all.iter().any(|process| process.pid == *pid);
    if let Some(pid) = args.processes.iter().find(|pid| !is_known(pid)) {
        return Err(format!(
            "process {pid} has no software device open, or belongs to another user"
        ));
    }
    let is_wanted = |pid| args.processes.is_empty() || args.processes.contains(&pid);
    let shown: Vec<_> = all.iter().filter(|process| is_wanted(process.pid)).collect();
    if args.json {
        return output::print_text(&format!("{:#}\n", json_of(&shown, &all)));
    }
    if shown.is_empty() {
        return output::print_text(
            "no process of this user has a software device open; root sees the processes of all users\n",
        );
    }
    output::print_text(&table(&shown, &all))
}

/// The other end of a connected QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer<'a> {
    /// The QP is not connected.
    None,
    /// A QP of a process of this host that is connected back.
    Process(&'a SoftProcess, u32),
    /// A QP of this host that is not connected back, or does not exist any more.
    Gone(u32),
    OtherHost,
}

/// The process of `all` that has the other end of `qp`, a QP of `owner`.
fn peer_of<'a>(qp: &QueuePair, owner: &SoftProcess, all: &'a [SoftProcess]) -> Peer<'a> {
    let destination = match qp.destination {
        Destination::None => return Peer::None,
        Destination::OtherHost => return Peer::OtherHost,
        Destination::Here(number) => number,
    };
    let is_other_end = |process: &&SoftProcess| {
        process.fabric == owner.fabric
            && process.qps.iter().flatten().any(|other| {
                other.number == destination && other.destination == Destination::Here(qp.number)
            })
    };
    match all.iter().find(is_other_end) {
        Some(process) => Peer::Process(process, destination),
        None => Peer::Gone(destination),
    }
}

fn table(shown: &[&SoftProcess], all: &[SoftProcess]) -> String {
    let mut text = String::new();
    for process in shown {
        let devices = match process.devices.is_empty() {
            true => "no device".to_owned(),
            false => process.devices.join(" "),
        };
        let fabric = process.fabric.as_ref().map_or("unknown", |fabric| fabric.path.as_str());
        let (pid, command) = (process.pid, &process.command);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{pid} {command}: {devices}, fabric {fabric}");
        let Some(qps) = &process.qps else {
            text.push_str("    the tables of another release: its QPs are unknown\n");
            continue;
        };
        for qp in qps {
            let peer = match peer_of(qp, process, all) {
                Peer::None => "-".to_owned(),
                Peer::Process(peer, number) => {
                    format!("QP {number:#08x} of {} ({})", peer.pid, peer.command)
                }
                Peer::Gone(number) => format!("QP {number:#08x}, which is gone"),
                Peer::OtherHost => "a QP of another host".to_owned(),
            };
            let state =
                if qp.is_port_down { format!("{} (port down)", qp.state) } else { qp.state.into() };
            let _ = writeln!(text, "    {:#08x}  {:<10}  {state:<5}  {peer}", qp.number, qp.kind);
        }
    }
    text
}

fn json_of(shown: &[&SoftProcess], all: &[SoftProcess]) -> Value {
    let qp = |process: &SoftProcess, qp: &QueuePair| {
        let (kind, peer, number) = match peer_of(qp, process, all) {
            Peer::None => ("none", None, None),
            Peer::Process(peer, number) => ("process", Some(peer.pid), Some(number)),
            Peer::Gone(number) => ("gone", None, Some(number)),
            Peer::OtherHost => ("other host", None, None),
        };
        json!({
            "qpn": qp.number, "type": qp.kind, "state": qp.state, "port_down": qp.is_port_down,
            "peer": kind, "peer_qpn": number, "peer_pid": peer,
        })
    };
    let process = |process: &&SoftProcess| {
        let qps = process.qps.as_ref();
        let qps = qps.map(|qps| qps.iter().map(|one| qp(process, one)).collect::<Vec<_>>());
        json!({
            "pid": process.pid, "command": process.command, "devices": process.devices,
            "fabric": process.fabric.as_ref().map(|fabric| &fabric.path), "qps": qps,
        })
    };
    json!({ "processes": shown.iter().map(process).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::reading::Fabric;
    use super::*;

    fn process(pid: u32, inode: u64, qps: &[(u32, Option<u32>)]) -> SoftProcess {
        let qp = |(number, destination): &(u32, Option<u32>)| QueuePair {
            number: *number,
            kind: "RC",
            state: if destination.is_some() { "RTS" } else { "INIT" },
            is_port_down: false,
            destination: destination.map_or(Destination::None, Destination::Here),
        };
        SoftProcess {
            pid,
            command: "x".into(),
            devices: vec!["soft0".into()],
            fabric: Some(Fabric { path: "/f".into(), identity: (1, inode) }),
            qps: Some(qps.iter().map(qp).collect()),
        }
    }

    #[test]
    fn a_peer_is_a_process_whose_qp_is_connected_back() {
        let all = [
            process(7, 1, &[(0x4001, Some(0x8001)), (0x4002, None), (0x4003, Some(0x8002))]),
            process(8, 1, &[(0x8001, Some(0x4001)), (0x8002, Some(0x9999))]),
            // Another fabric has the same numbers.
            process(9, 2, &[(0x8002, Some(0x4003))]),
        ];
        let qps = all[0].qps.as_ref().unwrap();
        let peers = qps.iter().map(|qp| peer_of(qp, &all[0], &all)).collect::<Vec<_>>();
        assert_eq!(peers, [Peer::Process(&all[1], 0x8001), Peer::None, Peer::Gone(0x8002)]);
        let text = table(&[&all[0]], &all);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "7 x: soft0, fabric /f");
        assert_eq!(lines[1], "    0x004001  RC          RTS    QP 0x008001 of 8 (x)");
        assert_eq!(lines[2], "    0x004002  RC          INIT   -");
        let json = json_of(&[&all[0]], &all);
        assert_eq!(json["processes"][0]["qps"][0]["peer_pid"], 8);
        assert_eq!(json["processes"][0]["qps"][2]["peer_pid"], Value::Null);
        assert_eq!(json["processes"][0]["qps"][2]["peer_qpn"], 0x8002);
    }

    #[test]
    fn qps_of_another_release_are_unknown() {
        let other = SoftProcess { qps: None, ..process(7, 1, &[]) };
        assert!(table(&[&other], &[]).contains("another release"));
        assert_eq!(json_of(&[&other], &[])["processes"][0]["qps"], Value::Null);
    }
}
