//! Programs of larger packages that look for the device in files: UCX and the node exporter of
//! Prometheus (docs/reference/programs.md, "Programs that look for files").

use super::{LIMIT, ferroverbs, users};
use crate::{Bench, Tally};
use xtask::pair::free_port;

/// `$1` is a free port. The exporter answers as soon as it listens.
const EXPORTER: &str = "
    prometheus-node-exporter --collector.disable-defaults --collector.infiniband \\
        --web.listen-address=127.0.0.1:$1 2>/dev/null & exporter=$!
    trap 'kill $exporter; wait $exporter || :' EXIT
    ask='exec 3<>/dev/tcp/127.0.0.1/$0; printf \"GET /metrics HTTP/1.0\\r\\n\\r\\n\" >&3; cat <&3'
    until said=$(bash -c \"$ask\" $1 2>/dev/null) && test -n \"$said\"; do kill -0 $exporter; sleep 0.05; done
    printf '%s\\n' \"$said\"";

pub(super) fn programs(bench: &Bench, tally: &mut Tally) -> crate::Result<()> {
    for (who, user) in users() {
        for (name, text, lines) in [
            (
                "UCX without -n",
                "ucx_info -d",
                &["Transport: rc_verbs", "Transport: ud_verbs", "Device: soft0:1"] as &[&str],
            ),
            (
                "the node exporter",
                EXPORTER,
                &[
                    "node_infiniband_info{board_id=\"ferroverbs\",device=\"soft0\"",
                    "node_infiniband_state_id{device=\"soft0\",port=\"1\"} 4",
                    "node_infiniband_rate_bytes_per_second{device=\"soft0\",port=\"1\"} 1.25e+10",
                ],
            ),
        ] {
            let name = format!("{name}, as {who}");
            bench.step(&name);
            let port = free_port()?.to_string();
            let (_fabric, job) =
                ferroverbs(bench, user, &["run", "--", "sh", "-ec", text, "sh", &port])?;
            let done = job.run(&bench.scratch, LIMIT)?;
            tally.record(&name, done.expect(lines));
        }
    }
    Ok(())
}
