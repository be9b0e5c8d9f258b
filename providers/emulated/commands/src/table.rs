//! Objects and their handles.

use crate::refusal::Refusal;

/// Objects of one kind. Handles are the lowest free numbers, so a number is used again soon.
#[derive(Debug)]
pub struct Table<T> {
    objects: Vec<Option<T>>,
    capacity: usize,
}

impl<T> Table<T> {
    /// No objects, and room for `most`.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { objects: Vec::new(), capacity: most }
    }

    /// The handle that the next object will get.
    ///
    /// # Errors
    /// [`Refusal::NoMemory`] when the table is full.
    pub fn next(&self) -> Result<u32, Refusal> {
        let free = self.objects.iter().position(Option::is_none).unwrap_or(self.objects.len());
        match u32::try_from(free) {
            Ok(handle) if free < self.capacity => Ok(handle),
            _ => Err(Refusal::NoMemory),
        }
    }

    /// Adds an object.
    ///
    /// # Errors
    /// [`Refusal::NoMemory`] when the table is full.
    pub fn add(&mut self, object: T) -> Result<u32, Refusal> {
        let handle = self.next()?;
        match self.objects.get_mut(handle as usize) {
            Some(slot) => *slot = Some(object),
            None => self.objects.push(Some(object)),
        }
        Ok(handle)
    }

    /// The object of a handle, to be used.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] without such an object.
    pub fn get(&self, handle: u32) -> Result<&T, Refusal> {
        self.objects.get(handle as usize).and_then(Option::as_ref).ok_or(Refusal::Invalid)
    }

    /// The object of a handle, to be changed.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] without such an object.
    pub fn get_mut(&mut self, handle: u32) -> Result<&mut T, Refusal> {
        self.objects.get_mut(handle as usize).and_then(Option::as_mut).ok_or(Refusal::Invalid)
    }

    /// Takes an object out.
    ///
    /// # Errors
    /// [`Refusal::NoObject`] without such an object.
    pub fn remove(&mut self, handle: u32) -> Result<T, Refusal> {
        self.objects.get_mut(handle as usize).and_then(Option::take).ok_or(Refusal::NoObject)
    }

    /// All objects with their handles.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.objects).filter_map(|(handle, object)| Some((handle, object.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_handle_is_given_and_a_full_table_refuses() {
        let mut table = Table::new(3);
        assert_eq!(["a", "b", "c"].map(|name| table.add(name)), [Ok(0), Ok(1), Ok(2)]);
        assert_eq!(table.add("d"), Err(Refusal::NoMemory));
        assert_eq!(table.remove(1), Ok("b"));
        assert_eq!(table.get(1), Err(Refusal::Invalid));
        assert_eq!(table.remove(1), Err(Refusal::NoObject));
        assert_eq!((table.next(), table.add("e")), (Ok(1), Ok(1)));
        assert_eq!(table.iter().map(|(handle, _)| handle).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(table.get_mut(u32::MAX).err(), Some(Refusal::Invalid));
    }
}
