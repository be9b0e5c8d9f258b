//! Memory whose size an application chooses: that there is none is an answer to it, and not the end
//! of the program.
#![forbid(unsafe_code)]

/// Nothing, with room for `count`; `None`: there is no memory for it.
pub(crate) fn room<T>(count: usize) -> Option<Vec<T>> {
    let mut items = Vec::new();
    items.try_reserve_exact(count).ok()?;
    Some(items)
}

/// `count` times `value`; `None`: there is no memory for it.
pub(crate) fn filled<T: Clone>(value: T, count: usize) -> Option<Box<[T]>> {
    let mut items = room(count)?;
    items.resize(count, value);
    Some(items.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_memory_has_room_for_is_refused() {
        assert_eq!(filled(7_u64, 3).as_deref(), Some([7; 3].as_slice()));
        assert!(filled(7_u64, isize::MAX as usize / 8).is_none());
        assert!(filled(7_u64, usize::MAX).is_none(), "more than can be addressed");
    }
}
