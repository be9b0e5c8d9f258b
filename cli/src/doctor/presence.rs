//! Checks whether the software device appears in `/sys/class/infiniband`, for programs that read it
//! from there.

use super::check::Check;
use super::devices::{CLASS, Device};
use super::machine::Machine;
use super::soft;
use crate::tree;

/// `None` if programs do not see the software device, or if the machine is an unpacked image that
/// does not show the device.
pub(super) fn check(machine: &Machine, devices: &[Device]) -> Option<Check> {
    if !soft::is_visible(machine, devices) {
        return None;
    }
    let name = soft::name(machine);
    if machine.has_file(format!("{CLASS}/{name}/node_guid")) {
        return Some(Check::ok("tree", format!("{CLASS} shows {name}")));
    }
    // For an unpacked image, this command cannot tell whether `ferroverbs run` may create its mount
    // namespace there.
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
