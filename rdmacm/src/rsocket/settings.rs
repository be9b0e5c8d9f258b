//! Default settings of the administrator (rsocket(7)): one number in each file of
//! `/etc/rdma/rsocket`.
//! New sockets and waiting calls read them.

use ferroverbs_cm::stream::Settings;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

const FOLDER: &str = "/etc/rdma/rsocket";
const FILES: &[&str] = &[
    "sqsize_default",
    "rqsize_default",
    "inline_default",
    "mem_default",
    "wmem_default",
    "iomap_size",
];

/// The values of the files, read once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    /// The settings of new sockets.
    pub(super) settings: Settings,
    /// The time that a call polls before it sleeps.
    pub(super) polling: Duration,
    /// The longest sleep of rpoll(3) before it checks again.
    pub(super) wake_up: Duration,
}

/// The defaults of this process.
pub(super) fn defaults() -> &'static Defaults {
    static DEFAULTS: OnceLock<Defaults> = OnceLock::new();
    DEFAULTS.get_or_init(|| read(Path::new(FOLDER)))
}

fn read(folder: &Path) -> Defaults {
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str, default| {
        let first =
            text(name).and_then(|text: String| text.split_whitespace().next()?.parse().ok());
        first.unwrap_or(default)
    };
    let mut settings = Settings::default();
    for &name in FILES {
        if let Some(text) = text(name) {
            settings.read(name, &text);
        }
    }
    Defaults {
        settings,
        polling: Duration::from_micros(number("polling_time", 10)),
        wake_up: Duration::from_millis(number("wake_up_interval", 500).max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_folder_change_the_defaults_and_none_leave_them() {
        let folder =
            std::env::temp_dir().join(format!("ferroverbs-rsocket-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let none = read(&folder);
        assert_eq!((none.polling.as_micros(), none.wake_up.as_millis()), (10, 500));
        assert_eq!(none.settings, Settings::default());
        for (name, text) in
            [("mem_default", "65536\n"), ("polling_time", "0\n"), ("wake_up_interval", "x")]
        {
            std::fs::write(folder.join(name), text).expect("written");
        }
        let some = read(&folder);
        assert_eq!((some.polling.as_micros(), some.wake_up.as_millis()), (0, 500));
        assert_eq!(some.settings.receive_bytes, 65536);
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
