//! The number and the names of software devices (`FERROVERBS_SOFT`, `FERROVERBS_SOFT_NAME`), and
//! the words of switches. The provider reads the variables and passes their texts.

/// The largest number of devices: the last bits of a device's GUID number the devices.
pub const MOST: usize = 32;

/// The values of `FERROVERBS_SOFT`, for messages.
pub const ALLOWED: &str = "off, on, or a number of devices from 0 to 32";

/// The values of `FERROVERBS_SOFT_NAME`, for messages.
pub const NAMES_ALLOWED: &str = "a name with %d for the number, such as rxe%d or mlx5_%d: letters, digits, '_', '-' and '.' only, the first a letter, \
                                 50 at most, and no name of a node of the kernel such as uverbs%d";

/// The names of the devices: a text around the number of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern {
    prefix: String,
    suffix: String,
}

impl Default for NamePattern {
    /// `soft0`, `soft1` and so on.
    fn default() -> Self {
        Self { prefix: "soft".to_owned(), suffix: String::new() }
    }
}

impl NamePattern {
    /// The pattern that a value of `FERROVERBS_SOFT_NAME` describes; `None` if the value is
    /// malformed.
    ///
    /// Names become file names in `/sys/class/infiniband` and `/dev/infiniband`, so a name has no
    /// slash, and is no name of a node of the kernel.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        const LONGEST: usize = 50;
        const NODES: [&str; 5] = ["uverbs", "umad", "issm", "ucm", "rdma_cm"];
        let (before, after) = text.split_once("%d")?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let is_good = before.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.len() <= LONGEST
            && before.chars().chain(after.chars()).all(is_plain)
            && !(after.is_empty() && NODES.contains(&before));
        is_good.then(|| Self { prefix: before.to_owned(), suffix: after.to_owned() })
    }

    /// The name of device `number`.
    #[must_use]
    pub fn name(&self, number: usize) -> String {
        format!("{}{number}{}", self.prefix, self.suffix)
    }

    /// The number of the device with this name; `None` if no device has the name.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<usize> {
        let digits = name.strip_prefix(&self.prefix)?.strip_suffix(&self.suffix)?;
        digits.parse().ok()
    }
}

/// The number of devices that a value of `FERROVERBS_SOFT` asks for; `None` if the value is
/// malformed.
#[must_use]
pub fn parse(text: &str) -> Option<usize> {
    match switch(text) {
        Some(on) => Some(usize::from(on)),
        None => text.parse().ok().filter(|count| *count <= MOST),
    }
}

/// The meaning of a word that switches a setting on or off; `None` for other words.
#[must_use]
pub fn switch(text: &str) -> Option<bool> {
    let is = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is(&["off", "no", "0", "false"]) {
        Some(false)
    } else if is(&["on", "yes", "1", "true"]) {
        Some(true)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_gives_each_number_a_name_and_each_name_its_number() {
        for (text, third) in
            [("rxe%d", "rxe3"), ("mlx5_%d", "mlx5_3"), ("a%d-x", "a3-x"), ("siw-%d.0", "siw-3.0")]
        {
            let pattern = NamePattern::parse(text).expect(text);
            assert_eq!(pattern.name(3), third);
            assert_eq!(pattern.number(third), Some(3), "{text}");
            assert_eq!(pattern.number("other"), None);
        }
        assert_eq!(NamePattern::default().name(0), "soft0");
        assert_eq!(NamePattern::parse("soft%d"), Some(NamePattern::default()));
    }

    #[test]
    fn a_pattern_without_a_number_or_that_is_no_file_name_is_refused() {
        let long = format!("{}%d", "x".repeat(50));
        for text in [
            "",
            "rxe0",
            "%d",
            "5%d",
            "../%d",
            "a/%d",
            "a%d/..",
            "a%d%d",
            "a %d",
            "ä%d",
            "uverbs%d",
            "rdma_cm%d",
            ".%d",
            &long,
        ] {
            assert_eq!(NamePattern::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_value_is_a_switch_or_a_number_of_devices() {
        assert_eq!(["off", "on", "3", "32"].map(parse), [Some(0), Some(1), Some(3), Some(32)]);
        assert_eq!(["maybe", "33", "-1", ""].map(parse), [None; 4]);
        assert!(ALLOWED.ends_with(&MOST.to_string()));
    }
}
