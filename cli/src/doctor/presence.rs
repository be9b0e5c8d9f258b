//! Checks whether programs that look for files find the software device: in
//! `/sys/class/infiniband`.

use super::check::Check;
use super::devices::{CLASS, Device};
use super::machine::Machine;
use super::soft;
use crate::tree;

pub(super) fn check(machine: &Machine, devices: &[Device]) -> Option<Check> {
    if !soft::is_visible(machine, devices) {
        return None;
    }
    let name = soft::name(machine);
    if machine.has_file(format!("{CLASS}/{name}/node_guid")) {
        return Some(Check::ok("tree", format!("{CLASS} shows {name}")));
    }
    // The files of an image do not show whether a namespace can be made.
    if !machine.is_this() {
        return None;
    }
    Some(match tree::is_allowed() {
        Ok(()) => Check::ok("tree", format!("`ferroverbs run` shows {name} in {CLASS}")),
        Err(why) => {
            let finding = format!("`ferroverbs run` cannot show {name} in {CLASS}: {why}");
            Check::note("tree", finding).remedy(tree::remedy())
        }
    })
}
