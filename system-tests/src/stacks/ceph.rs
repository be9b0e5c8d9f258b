//! Ceph's messenger `async+rdma`: a monitor, and clients that store and read values.

use super::{PATHS, Stacks, good, script};
use crate::Tally;
use xtask::pair;

impl Stacks<'_> {
    /// RC with an SRQ, completion events and asynchronous events; addresses are exchanged by TCP.
    pub(super) fn ceph(&self, tally: &mut Tally) -> crate::Result<()> {
        for path in PATHS {
            let name = format!("Ceph, a monitor and its clients ({})", path.name());
            self.bench.step(&name);
            let fabric = self.bench.over(path)?;
            script(self.bench, "ceph_store.sh")?;
            let script = script(self.bench, "ceph_mon.sh")?;
            let job = fabric.over.job("sh").arg(script).arg(pair::free_port()?.to_string());
            let done = self.finish(&fabric, job)?;
            // What the monitor got and sent by queue pairs.
            let counted =
                ["\"rx_bytes\": ", "\"tx_bytes\": "].iter().all(|c| done.stdout.contains(c));
            let result = good(&done, "4 values, 0 wrong");
            let unseen = || format!("nothing went by queue pairs\n{}", done.report("the script"));
            tally.record(&name, result.and_then(|()| if counted { Ok(()) } else { Err(unseen()) }));
        }
        Ok(())
    }
}
