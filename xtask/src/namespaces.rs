//! Network namespaces with a cable between them: two hosts in one.

use std::sync::atomic::{AtomicU32, Ordering};

/// Two network namespaces; gone with this.
#[derive(Debug)]
pub struct Namespaces {
    /// For `ip netns`.
    pub names: [String; 2],
    /// Of the cable's ends.
    pub devices: [String; 2],
}

/// Address of the server's namespace.
pub const SERVER: &str = "10.99.0.1";

/// And of the client's.
pub const CLIENT: &str = "10.99.0.2";

/// Addresses at the two ends of a second cable.
pub const SECOND: [&str; 2] = ["10.98.0.1", "10.98.0.2"];

impl Namespaces {
    /// Two connected network namespaces.
    ///
    /// # Errors
    /// The reason why they cannot be made, as a message.
    pub fn new() -> crate::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        // There may be two pairs at a time.
        let id = format!("{}x{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let made = Self {
            names: [format!("fv-host-{id}-a"), format!("fv-host-{id}-b")],
            devices: [format!("fva{id}"), format!("fvb{id}")],
        };
        let ([a, b], [x, y]) = (&made.names, &made.devices);
        let lines = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add {x} netns {a} type veth peer name {y} netns {b}"),
            format!("-n {a} address add {SERVER}/24 dev {x}"),
            format!("-n {b} address add {CLIENT}/24 dev {y}"),
            // Without duplicate address detection.
            format!("-n {a} address add fd99::1/64 dev {x} nodad"),
            format!("-n {b} address add fd99::2/64 dev {y} nodad"),
            format!("-n {a} link set {x} up"),
            format!("-n {b} link set {y} up"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
        ];
        for line in lines {
            ip(&line)?;
        }
        Ok(made)
    }

    /// Gives the server's namespace another address, or takes it away, and says which.
    ///
    /// # Errors
    /// It cannot: for people.
    pub fn other_address(&self, there: bool) -> crate::Result<&'static str> {
        const OTHER: &str = "10.99.0.3";
        let ([name, _], [device, _]) = (&self.names, &self.devices);
        let what = if there { "add" } else { "delete" };
        ip(&format!("-n {name} address {what} {OTHER}/24 dev {device}"))?;
        Ok(OTHER)
    }

    /// The link-local address that a side's end of the cable has, without its interface.
    ///
    /// # Errors
    /// It has none: for people.
    pub fn link_local(&self, side: usize) -> crate::Result<String> {
        let (name, device) = (&self.names[side], &self.devices[side]);
        let args = ["-n", name, "-o", "-6", "address", "show", "dev", device, "scope", "link"];
        let shown = std::process::Command::new("ip").args(args).output();
        let shown = shown.map_err(|why| format!("ip: {why}"))?;
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let mut words = shown.split_whitespace().skip_while(|word| *word != "inet6").skip(1);
        let address = words.next().and_then(|word| word.split('/').next());
        Ok(address.ok_or_else(|| format!("{device} has no link-local address"))?.to_owned())
    }

    /// Sets the packet size `mtu` of the cable, and its impairment `netem` (tc-netem(8)); empty:
    /// none.
    ///
    /// # Errors
    /// The failed command, as a message.
    pub fn set_cable(&self, mtu: u32, netem: &str) -> crate::Result<()> {
        for (name, device) in self.names.iter().zip(&self.devices) {
            ip(&format!("-n {name} link set {device} mtu {mtu}"))?;
            let base = format!("netns exec {name} tc qdisc");
            let _ = ip(&format!("{base} del dev {device} root"));
            if !netem.is_empty() {
                ip(&format!("{base} add dev {device} root netem {netem}"))?;
            }
        }
        Ok(())
    }

    /// Lays a second cable with its own addresses.
    ///
    /// # Errors
    /// The failed command, as a message.
    pub fn lay_second(&self) -> crate::Result<()> {
        let ([a, b], [x, y]) = (&self.names, self.second());
        ip(&format!("link add {x} netns {a} type veth peer name {y} netns {b}"))?;
        for side in 0..2 {
            self.address_second(side, true)?;
            self.plug_second(side, true)?;
        }
        Ok(())
    }

    /// Takes the interface of the second cable down on a side, or up.
    ///
    /// # Errors
    /// It cannot: for people.
    pub fn plug_second(&self, side: usize, up: bool) -> crate::Result<()> {
        let (name, device) = (&self.names[side], &self.second()[side]);
        ip(&format!("-n {name} link set {device} {}", if up { "up" } else { "down" }))
    }

    /// Takes the address of the second cable away on a side, or gives it.
    ///
    /// # Errors
    /// It cannot: for people.
    pub fn address_second(&self, side: usize, there: bool) -> crate::Result<()> {
        let (name, device) = (&self.names[side], &self.second()[side]);
        let what = if there { "add" } else { "delete" };
        ip(&format!("-n {name} address {what} {}/24 dev {device}", SECOND[side]))
    }

    /// Takes the second cable away.
    ///
    /// # Errors
    /// It cannot: for people.
    pub fn remove_second(&self) -> crate::Result<()> {
        ip(&format!("-n {} link delete {}", self.names[0], self.second()[0]))
    }

    fn second(&self) -> [String; 2] {
        self.devices.clone().map(|device| format!("{device}s"))
    }

    /// Pulls the plug of the server's end of the cable, or puts it in.
    ///
    /// # Errors
    /// It cannot: for people.
    pub fn plug(&self, plugged: bool) -> crate::Result<()> {
        let ([name, _], [device, _]) = (&self.names, &self.devices);
        ip(&format!("-n {name} link set {device} {}", if plugged { "up" } else { "down" }))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns delete {name}"));
        }
    }
}

fn ip(line: &str) -> crate::Result<()> {
    let done = std::process::Command::new("ip").args(line.split(' ')).output();
    let done = done.map_err(|e| format!("cannot run ip: {e}"))?;
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() { Ok(()) } else { Err(format!("ip {line}: {}", text.trim())) }
}
