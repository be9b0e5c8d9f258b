//! Link-local addresses: each of two cables has its own, which mean something on that cable only.

use super::super::isolation::PairSetup;
use super::failures::wait;
use crate::{Bench, Tally};
use xtask::namespaces::Namespaces;

const PROGRAMS: &[(&str, &[&str])] = &[
    ("ibv_rc_pingpong", &["-n", "200", "-g"]),
    ("ibv_uc_pingpong", &["-n", "200", "-g"]),
    ("ibv_ud_pingpong", &["-n", "200", "-s", "512", "-g"]),
    ("ib_send_bw", &["-n", "100", "-s", "65536", "-x"]),
    ("ib_send_bw", &["-n", "1000", "-s", "512", "-c", "UD", "-x"]),
    ("ib_read_bw", &["-n", "100", "-s", "65536", "-x"]),
];

pub(super) fn run(bench: &Bench, tally: &mut Tally, hosts: &Namespaces) -> crate::Result<()> {
    hosts.lay_second()?;
    let indices = indices(bench, hosts);
    match indices {
        Err(why) => tally.record("link-local addresses", Err(why)),
        Ok(indices) => {
            for (cable, index) in indices.iter().enumerate() {
                for (program, args) in PROGRAMS {
                    let name = format!(
                        "{program} {} of a link-local address, cable {}",
                        args.join(" "),
                        cable + 1
                    );
                    bench.step(&format!("hosts: {name}"));
                    tally.record(&name, pair(bench, hosts, program, args, index));
                }
            }
        }
    }
    hosts.remove_second()
}

fn pair(
    bench: &Bench,
    hosts: &Namespaces,
    program: &str,
    args: &[&str],
    index: &str,
) -> Result<(), String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let args = [args, &[index]].concat();
    place.together(bench, program, &args)
}

/// The GID indexes of the link-local addresses of both cables, equal on both hosts. The kernel
/// first checks for duplicate addresses.
fn indices(bench: &Bench, hosts: &Namespaces) -> Result<[String; 2], String> {
    let place = PairSetup::wired(bench, hosts, "")?;
    let mut found = None;
    wait("two link-local addresses of each host", || {
        let tables = [0, 1].map(|side| {
            let done = place
                .job(bench, side, "ibv_devinfo", &["-v"])?
                .run(&bench.scratch, super::LIMIT)?;
            Ok::<_, String>(link_local(&done.stdout))
        });
        let [one, other] = tables;
        found = Some(one?).filter(|one| other.as_ref().is_ok_and(|other| other == one));
        Ok(found.as_ref().is_some_and(|indices| indices.len() == 2))
    })?;
    let indices = found.and_then(|indices| <[String; 2]>::try_from(indices).ok());
    indices.ok_or_else(|| "there are none".into())
}

/// Their indexes in the output of `ibv_devinfo -v`. The first GID is soft's own and looks like a
/// link-local one.
fn link_local(table: &str) -> Vec<String> {
    let entries = table.lines().filter_map(|line| {
        let (index, gid) = line.trim().strip_prefix("GID[")?.split_once("]:")?;
        Some((index.trim(), gid.trim()))
    });
    let own = entries.filter(|(index, gid)| *index != "0" && gid.starts_with("fe80:"));
    own.map(|(index, _)| index.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_addresses_are_found_by_their_places() {
        let table = "\t\t\tGID[  0]:\t\tfe80::1, RoCE v2\n\
                     \t\t\tGID[  1]:\t\t::ffff:10.99.0.1, RoCE v2\n\
                     \t\t\tGID[  3]:\t\tfe80::2c6d:2fff, RoCE v2\n\
                     \t\t\tGID[ 11]:\t\tfe80::3, RoCE v2\n";
        assert_eq!(link_local(table), ["3", "11"]);
    }
}
