//! The kernel's identification of IPv4 packets, which the ICRC covers. Single packets take the
//! shortcut, a connected socket whose packets the kernel numbers.

use super::super::capture::icrc;
use super::super::isolation::{PairSetup, both_end_well};
use super::failures::wait;
use crate::{Bench, Tally};
use std::path::Path;
use std::time::Instant;
use xtask::namespaces::Namespaces;
use xtask::packages::find_program;

/// A packet of each side for each message; some of the first go without the shortcut.
const PROGRAM: (&str, &[&str]) = ("ibv_rc_pingpong", &["-g", "1", "-n", "500", "-s", "64"]);
const NUMBERED: usize = 500;
/// Bytes of the headers of Ethernet, IPv4 and UDP.
const ETHERNET: usize = 14;
const HEADERS: usize = 20 + 8;

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) {
    let name = "packets that the kernel numbers have the right ICRC";
    bench.step(&format!("hosts: {name}"));
    match find_program("dumpcap") {
        None => tally.skip(name, "no dumpcap (apt-get install tshark)"),
        Some(_) => tally.record(name, captured(bench, hosts)),
    }
}

fn captured(bench: &Bench, hosts: &Namespaces) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let file = bench.scratch.path().join("numbers.pcapng");
    let path = file.to_string_lossy();
    let filter = "udp port 4791 and ip";
    let args = ["-q", "-i", &hosts.devices[0], "-f", filter, "-w", &path];
    let mut dumpcap = place.job(bench, 0, "dumpcap", &args)?.start(&bench.scratch)?;
    wait("dumpcap listens", || match dumpcap.ended() {
        true => Err(format!("dumpcap: {}", dumpcap.complained())),
        false => Ok(dumpcap.complained().contains("File: ")),
    })?;
    let (program, args) = PROGRAM;
    both_end_well(place.start(bench, program, args)?)?;
    wait("the packets are in the file", || {
        Ok(numbered(&file).is_ok_and(|numbered| numbered >= NUMBERED))
    })
    .or_else(|late| numbered(&file).and_then(|numbered| Err(format!("{numbered}: {late}"))))?;
    dumpcap.kill();
    dumpcap.finish(Instant::now());
    Ok(())
}

/// How many packets with a number there are, if all have the right ICRC.
fn numbered(file: &Path) -> Result<usize, String> {
    let bytes = std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut numbered = 0;
    for (frame, _) in icrc::frames(&bytes) {
        let ip = frame.get(ETHERNET..).unwrap_or_default();
        let length = ip.get(2..4).map_or(0, |b| usize::from(u16::from_be_bytes([b[0], b[1]])));
        // Without identification: packets of the lane, possibly a datagram before segmentation.
        // Without payload: soft's probes of the kernel's numbering.
        if length <= HEADERS || ip.get(4..6) == Some(&[0, 0]) {
            continue;
        }
        let (wanted, got) = ip.get(..length).and_then(icrc::of).ok_or("a packet that is cut")?;
        if wanted != got {
            return Err(format!("{got:#010x} instead of {wanted:#010x}: {frame:02x?}"));
        }
        numbered += 1;
    }
    Ok(numbered)
}
