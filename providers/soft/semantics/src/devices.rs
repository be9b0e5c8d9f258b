//! The number of software devices that `FERROVERBS_SOFT` asks for, and the words of switches.

/// The largest number of devices: the last bits of a device's GUID number the devices.
pub const MOST: usize = 32;

/// The values of `FERROVERBS_SOFT`, for messages.
pub const ALLOWED: &str = "off, on, or a number of devices from 0 to 32";

/// The number of devices that a value of `FERROVERBS_SOFT` asks for; `None` if the value is malformed.
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
    fn a_value_is_a_switch_or_a_number_of_devices() {
        assert_eq!(["off", "on", "3", "32"].map(parse), [Some(0), Some(1), Some(3), Some(32)]);
        assert_eq!(["maybe", "33", "-1", ""].map(parse), [None; 4]);
        assert!(ALLOWED.ends_with(&MOST.to_string()));
    }
}
