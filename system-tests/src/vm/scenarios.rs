//! What is run over both libraries in the virtual machine.

use RunMethod::{Alone, Connect, Perftest, PingPong, Program};

/// One command, or two communicating commands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scenario {
    pub(super) how: RunMethod,
    pub(super) expect: ExpectedResult,
    /// Whether it is also run with plugins of newer releases.
    pub(super) newer: bool,
}

/// The expected end over upstream's library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedResult {
    /// Well.
    Works,
    /// With an error, whatever the device can do.
    Fails,
    /// With an error for as long as the kernel's rxe lacks something, namely this.
    Lacks(&'static str),
}

/// How it is run.
#[derive(Clone, Copy, Debug)]
pub(super) enum RunMethod {
    /// A command.
    Alone(&'static str),
    /// A ping-pong program and its options: the server on rxe0, the client on rxe1.
    PingPong(&'static str),
    /// A program of perftest and its options, in the same way.
    Perftest(&'static str),
    /// A C program of ours.
    Program(&'static str),
    /// A server and its client, which connect by librdmacm. The record excludes a server that never
    /// ends.
    Connect { server: &'static str, client: &'static str, comes: ClientStart },
}

/// When a client can come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientStart {
    /// When the kernel has a listener.
    Listening,
    /// Likewise; the server serves for ever.
    Endless,
    /// When the kernel's interface receives the group's packets (the address is that of
    /// `/proc/net/dev_mcast`).
    Joined(&'static str),
    /// At once: there is no server.
    Alone,
}

impl Scenario {
    pub(super) fn name(&self) -> String {
        match self.how {
            Alone(line) | PingPong(line) | Perftest(line) => line.to_string(),
            Program(name) => format!("{name}.c"),
            Connect { client, .. } => client.to_string(),
        }
    }
}

const fn works(how: RunMethod) -> Scenario {
    Scenario { how, expect: ExpectedResult::Works, newer: false }
}

const fn connect(server: &'static str, client: &'static str) -> Scenario {
    works(Connect { server, client, comes: ClientStart::Listening })
}

/// Works, with newer plugins too.
const fn everywhere(how: RunMethod) -> Scenario {
    Scenario { how, expect: ExpectedResult::Works, newer: true }
}

const fn fails(how: RunMethod) -> Scenario {
    Scenario { how, expect: ExpectedResult::Fails, newer: false }
}

const fn lacks(why: &'static str, how: RunMethod) -> Scenario {
    Scenario { how, expect: ExpectedResult::Lacks(why), newer: false }
}

/// In order of execution; scenarios that remove devices come last.
pub(super) const SCENARIOS: &[Scenario] = &[
    works(Alone("ibv_devices")),
    works(Alone("ibv_devinfo")),
    everywhere(Alone("ibv_devinfo -v")),
    works(Alone("ibv_devinfo -l")),
    works(Alone("ibv_devinfo -d rxe1 -i 1")),
    fails(Alone("ibv_devinfo -d rxe1 -i 2")),
    fails(Alone("ibv_devinfo -d rxe9")),
    works(PingPong("ibv_rc_pingpong -g 1 -n 300")),
    everywhere(PingPong("ibv_rc_pingpong -g 1 -e -n 300")),
    works(PingPong("ibv_rc_pingpong -g 1 -c -s 100000 -n 50")),
    works(PingPong("ibv_rc_pingpong -g 2 -m 512 -n 200")),
    everywhere(PingPong("ibv_rc_pingpong -g 1 -N -n 200")),
    lacks("rxe has no completion timestamps", PingPong("ibv_rc_pingpong -g 1 -t -n 100")),
    lacks("rxe of this kernel has no on-demand paging", PingPong("ibv_rc_pingpong -g 1 -o -n 100")),
    lacks("rxe has no device memory", PingPong("ibv_rc_pingpong -g 1 -j -n 100")),
    // By LID, which a RoCE device does not have.
    fails(PingPong("ibv_rc_pingpong -n 100")),
    works(PingPong("ibv_uc_pingpong -g 1 -n 300")),
    works(PingPong("ibv_uc_pingpong -g 1 -e -n 300")),
    everywhere(PingPong("ibv_ud_pingpong -g 1 -s 1024 -n 300")),
    works(PingPong("ibv_ud_pingpong -g 1 -s 1024 -e -n 300")),
    works(PingPong("ibv_srq_pingpong -g 1 -n 300")),
    everywhere(PingPong("ibv_srq_pingpong -g 1 -e -n 300")),
    lacks("rxe has no XRC", PingPong("ibv_xsrq_pingpong -g 1 -n 100")),
    works(Perftest("ib_send_bw -s 4096")),
    works(Perftest("ib_send_lat")),
    works(Perftest("ib_send_bw -s 4096 -e")),
    works(Perftest("ib_send_bw -s 4096 --use-srq")),
    works(Perftest("ib_send_bw -s 1024 -c UD")),
    works(Perftest("ib_send_lat -c UD -e")),
    works(Perftest("ib_send_bw -s 4096 -c UC")),
    works(Perftest("ib_send_bw -s 4096 -q 4")),
    everywhere(Perftest("ib_write_bw -s 4096")),
    works(Perftest("ib_write_lat")),
    works(Perftest("ib_read_bw -s 4096")),
    works(Perftest("ib_read_lat")),
    works(Perftest("ib_read_bw -s 4096 -e")),
    works(Perftest("ib_atomic_bw")),
    works(Perftest("ib_atomic_lat -A CMP_AND_SWAP")),
    lacks("rxe has no XRC", Perftest("ib_send_bw -s 4096 -c XRC")),
    connect("rping -s -V -C 20 -a 10.77.0.1", "rping -c -V -v -C 20 -a 10.77.0.1"),
    connect("rping -s -V -C 5 -a fd77::1", "rping -c -V -v -C 5 -a fd77::1"),
    connect("ucmatose -c 4 -C 5", "ucmatose -c 4 -C 5 -s 10.77.0.1"),
    // The program moves its ids to new channels half-way.
    connect("ucmatose -c 2 -m", "ucmatose -c 2 -m -s 10.77.0.1"),
    connect("udaddy -c 2 -C 5", "udaddy -c 2 -C 5 -s 10.77.0.1"),
    connect("rdma_server", "rdma_client -s 10.77.0.1"),
    connect("rdma_xserver -c r", "rdma_xclient -s 10.77.0.1 -c r"),
    // Its server waits for ever.
    lacks(
        "rxe has no XRC",
        Connect {
            server: "rdma_xserver -c x",
            client: "rdma_xclient -s 10.77.0.1 -c x",
            comes: ClientStart::Endless,
        },
    ),
    works(Connect {
        server: "cmtime",
        client: "cmtime -c 10 -s 10.77.0.1",
        comes: ClientStart::Endless,
    }),
    works(Connect {
        server: "mckey -m 239.1.1.1 -b 10.77.0.1 -C 3",
        client: "mckey -m 239.1.1.1 -b 10.77.0.1 -s -C 3",
        comes: ClientStart::Joined("3333ef010101"),
    }),
    connect("ib_send_bw -R -F -x 1 -n 20 -d rxe0", "ib_send_bw -R -F -x 1 -n 20 -d rxe0 10.77.0.1"),
    // Nobody listens.
    fails(Connect { server: "", client: "rping -c -C 1 -a 10.77.0.1", comes: ClientStart::Alone }),
    fails(Connect { server: "", client: "rping -c -C 1 -a 10.99.0.1", comes: ClientStart::Alone }),
    works(Program("forks")),
    everywhere(Program("events")),
    works(Program("hotplug")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_c_program_is_run_and_names_are_unique() {
        let names: BTreeSet<_> = SCENARIOS.iter().map(Scenario::name).collect();
        assert_eq!(names.len(), SCENARIOS.len());
        for program in ferroverbs_c_tests::KERNEL_DEVICE {
            assert!(names.contains(&format!("{program}.c")), "{program}");
        }
    }
}
