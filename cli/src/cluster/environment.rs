//! The environment of a host: variables, and files below `/dev/shm`, which each host mounts for
//! itself.

use super::network::{address, address6, host_name};
use rustix::mount::{MountFlags, mount, mount_bind};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The folder of shared memory, which is mounted for each host.
const SHARED: &str = "/dev/shm";
/// The folder of this command in the shared memory.
const FOLDER: &str = "/dev/shm/ferroverbs";
/// The variable with the process numbers of the keepers of all hosts, separated by commas.
pub(super) const KEEPERS: &str = "FERROVERBS_CLUSTER";
/// The variable with the number of the host, from 1 on.
pub(super) const HOST: &str = "FERROVERBS_HOST";

/// Makes the files of a host, `/etc/hosts` and `/sys`. The process is in the mount namespace of the
/// host.
pub(super) fn make_files(hosts: u8) -> crate::Result<()> {
    let failed = |what: &str, e: &dyn std::fmt::Display| format!("cannot {what}: {e}");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("ferroverbs", SHARED, "tmpfs", flags, Some(c"mode=1777"))
        .map_err(|e| failed("mount a /dev/shm", &e))?;
    let folder = Path::new(FOLDER);
    for dir in [folder.to_owned(), folder.join("bin"), folder.join("fabric")] {
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|e| failed("make a folder in /dev/shm", &e))?;
    }
    let write_file = |name: &str, text: &str| {
        let file = folder.join(name);
        fs::write(&file, text).map_err(|e| failed("write to /dev/shm", &e))?;
        Ok::<_, String>(file)
    };
    write_file("hostfile", &(1..=hosts).map(|n| host_name(n) + "\n").collect::<String>())?;
    for name in ["ssh", "rsh"] {
        let file = write_file(&format!("bin/{name}"), &script()?)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))
            .map_err(|e| failed("write to /dev/shm", &e))?;
    }
    let names = write_file("hosts", &names(hosts))?;
    mount_bind(&names, "/etc/hosts").map_err(|e| failed("put names into /etc/hosts", &e))?;
    // The new sysfs shows the interfaces of this host. If a container refuses the mount, programs
    // see those of the machine.
    let _ = mount("sysfs", "/sys", "sysfs", flags | MountFlags::NOEXEC, None);
    Ok(())
}

/// The script that takes the place of `ssh` in a host.
fn script() -> crate::Result<String> {
    let own = std::env::current_exe()
        .map_err(|e| format!("cannot find the file of this command: {e}"))?;
    let quoted = own.to_string_lossy().replace('\'', r"'\''");
    Ok(format!("#!/bin/sh\nexec '{quoted}' cluster-shell \"$@\"\n"))
}

/// The content of `/etc/hosts`, with other names for IPv6 addresses.
///
/// A program would take the IPv6 address of a name with both, and a server at the IPv4 wildcard
/// address would not receive the connection.
fn names(hosts: u8) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n");
    for n in 1..=hosts {
        let name = host_name(n);
        let _ = writeln!(text, "{} {name}\n{} {name}-6", address(n), address6(n));
    }
    text
}

/// The variables of the command in a host.
pub(super) fn variables(host: u8, hosts: u8, keepers: &str) -> Vec<(&'static str, String)> {
    let file = |name: &str| PathBuf::from(FOLDER).join(name).to_string_lossy().into_owned();
    let shell = file("bin/ssh");
    let list = file("hostfile");
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".into());
    let mut variables = vec![
        (HOST, host.to_string()),
        ("FERROVERBS_HOSTS", hosts.to_string()),
        ("FERROVERBS_HOSTFILE", list.clone()),
        (KEEPERS, keepers.to_owned()),
        ("FERROVERBS_FABRIC_DIR", file("fabric")),
        ("HOSTNAME", host_name(host)),
        ("PATH", format!("{}:{path}", file("bin"))),
    ];
    // The remote shell and the list of hosts for the launchers of Open MPI (before and from version
    // 5) and MPICH.
    let mut launchers = vec![
        ("OMPI_MCA_plm_rsh_agent", shell.clone()),
        ("OMPI_MCA_orte_default_hostfile", list.clone()),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1".into()),
        ("PRTE_MCA_plm_ssh_agent", shell.clone()),
        ("PRTE_MCA_prte_default_hostfile", list.clone()),
        ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe".into()),
        ("HYDRA_LAUNCHER", "ssh".into()),
        ("HYDRA_LAUNCHER_EXEC", shell),
        ("HYDRA_HOST_FILE", list),
    ];
    if rustix::process::geteuid().is_root() {
        let allowed = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
        launchers.extend(allowed.map(|name| (name, "1".into())));
        let allowed = ["PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"];
        launchers.extend(allowed.map(|name| (name, "1".into())));
    }
    // The user's own values take precedence.
    launchers.retain(|(name, _)| std::env::var_os(name).is_none());
    variables.extend(launchers);
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_a_name_for_each_address_family() {
        let text = names(2);
        for line in ["127.0.0.1 localhost", "10.76.0.1 host1", "10.76.0.2 host2", "fd76::2 host2-6"]
        {
            assert!(text.lines().any(|l| l == line), "{line}");
        }
        assert!(!text.contains("host3"));
    }

    #[test]
    fn a_host_has_a_number_and_a_separate_fabric_folder() {
        let variables = variables(2, 4, "7,8,9,10");
        let of = |name: &str| variables.iter().find(|(n, _)| *n == name).unwrap().1.clone();
        assert_eq!((of("FERROVERBS_HOST"), of("FERROVERBS_HOSTS")), ("2".into(), "4".into()));
        assert!(of("FERROVERBS_FABRIC_DIR").starts_with("/dev/shm/"));
        assert!(of("PATH").starts_with("/dev/shm/ferroverbs/bin:"));
    }
}
