//! Fallible allocation for sizes that an application chooses: a lack of memory becomes an errno,
//! not an abort.
#![forbid(unsafe_code)]

/// An empty vector with capacity `count`; `None`: out of memory.
pub(crate) fn room<T>(count: usize) -> Option<Vec<T>> {
    let mut items = Vec::new();
    items.try_reserve_exact(count).ok()?;
    Some(items)
}

/// `count` copies of `value`; `None`: out of memory.
pub(crate) fn filled<T: Clone>(value: T, count: usize) -> Option<Box<[T]>> {
    let mut items = room(count)?;
    items.resize(count, value);
    Some(items.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_beyond_memory_is_refused() {
        assert_eq!(filled(7_u64, 3).as_deref(), Some([7; 3].as_slice()));
        assert!(filled(7_u64, isize::MAX as usize / 8).is_none());
        assert!(filled(7_u64, usize::MAX).is_none(), "more than can be addressed");
    }
}
