//! Control messages (cmsg(3)): header fields that accompany a datagram in both directions. The
//! buffers have the kernel's layout, so that `sys` passes them on without conversion.

/// Bytes that suffice for all messages of a datagram, in both directions.
pub(crate) const CONTROL_MAX: usize = 160;

const WORD: usize = size_of::<usize>();
/// `struct cmsghdr`: length, level, type.
const HEADER: usize = WORD + 8;

/// Control messages in the kernel's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(8))]
pub(crate) struct Control {
    pub(crate) bytes: [u8; CONTROL_MAX],
    pub(crate) len: usize,
}

impl Control {
    pub(crate) const EMPTY: Self = Self { bytes: [0; CONTROL_MAX], len: 0 };

    /// Appends a message. `CONTROL_MAX` leaves room for all messages that are ever sent together.
    pub(crate) fn push<const N: usize>(&mut self, level: i32, kind: i32, data: [u8; N]) {
        let end = self.len + HEADER + N;
        let after = end.next_multiple_of(WORD);
        let Some(place) = self.bytes.get_mut(self.len..end) else {
            debug_assert!(false, "no room for a control message of {N} bytes");
            return;
        };
        let (length, rest) = place.split_at_mut(WORD);
        length.copy_from_slice(&(HEADER + N).to_ne_bytes());
        rest[..4].copy_from_slice(&level.to_ne_bytes());
        rest[4..8].copy_from_slice(&kind.to_ne_bytes());
        rest[8..].copy_from_slice(&data);
        self.len = after;
    }
}

/// The messages in `bytes`: level, type and data of each. Ends at an invalid length.
pub(crate) fn each(mut bytes: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk::<WORD>()?;
        let (&[l0, l1, l2, l3, k0, k1, k2, k3], _) = rest.split_first_chunk()?;
        let length = usize::from_ne_bytes(*length);
        let data = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.checked_next_multiple_of(WORD)?..).unwrap_or_default();
        let int = i32::from_ne_bytes;
        Some((int([l0, l1, l2, l3]), int([k0, k1, k2, k3]), data))
    })
}

/// The integer in the data of a message: most have 4 bytes, a TOS has 1.
pub(crate) fn number(data: &[u8]) -> Option<i32> {
    match data {
        [byte] => Some(i32::from(*byte)),
        _ => data.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushed_control_messages_are_read_back() {
        let mut control = Control::EMPTY;
        control.push(1, 2, [1_u8; 12]);
        control.push(3, 4, 7_i32.to_ne_bytes());
        control.push(5, 6, [9]);
        let found: Vec<_> = each(&control.bytes[..control.len]).collect();
        assert_eq!(found.len(), 3);
        assert_eq!(found[0], (1, 2, &[1; 12][..]));
        assert_eq!((found[1].0, found[1].1, number(found[1].2)), (3, 4, Some(7)));
        assert_eq!(number(found[2].2), Some(9));
        assert_eq!(number(&[]), None);
    }

    #[test]
    fn an_impossible_length_ends_the_list_of_messages() {
        for length in [0, 1, HEADER - 1, 1000, usize::MAX] {
            let mut control = Control::EMPTY;
            control.push(1, 2, [1_u8; 4]);
            control.bytes[..WORD].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(each(&control.bytes[..control.len]).count(), 0, "{length}");
        }
        assert_eq!(each(&[0; 7]).count(), 0);
    }
}
