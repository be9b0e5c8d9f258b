//! Log-linear histograms: four buckets for each power of two, so that a value is known to a quarter of itself, from a nanosecond to two minutes.

/// Buckets of one.
pub const BUCKETS: usize = 144;

/// The bucket of a value; the last one has all that is larger.
#[must_use]
#[inline]
pub fn bucket(value: u64) -> usize {
    if value < 4 {
        return value as usize;
    }
    let exponent = 63 - value.leading_zeros();
    let quarter = (value >> (exponent - 2) & 3) as usize;
    ((exponent as usize - 1) * 4 + quarter).min(BUCKETS - 1)
}

/// The first value that is above a bucket.
#[must_use]
pub fn end(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64 + 1;
    }
    let (exponent, quarter) = (bucket / 4 + 1, bucket as u64 % 4);
    (5 + quarter) << (exponent - 2)
}

/// What a histogram holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// How many values fell into each bucket.
    pub counts: [u64; BUCKETS],
    /// Of all values.
    pub sum: u64,
    /// The largest.
    pub most: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum: 0, most: 0 }
    }
}

impl Histogram {
    /// How many values there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The value that this share of all does not exceed, in thousandths, as far as buckets tell; `None` of nothing.
    #[must_use]
    pub fn quantile(&self, thousandths: u64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = (u128::from(count) * u128::from(thousandths)).div_ceil(1000).max(1) as u64;
        let mut seen = 0_u64;
        for (index, count) in self.counts.iter().enumerate() {
            seen = seen.saturating_add(*count);
            if seen >= wanted {
                // The last one has no end of its own.
                return Some(
                    if index + 1 == BUCKETS { self.most } else { end(index) - 1 }.min(self.most),
                );
            }
        }
        Some(self.most)
    }

    /// Adds what another one holds.
    pub fn add(&mut self, other: &Self) {
        for (mine, more) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*more);
        }
        self.sum = self.sum.saturating_add(other.sum);
        self.most = self.most.max(other.most);
    }

    /// What came since an earlier look at the same one. The largest value is that of all times.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        for (count, before) in since.counts.iter_mut().zip(&before.counts) {
            *count = count.saturating_sub(*before);
        }
        since.sum = since.sum.saturating_sub(before.sum);
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        let mut begin = 0;
        for index in 0..BUCKETS - 1 {
            let end = end(index);
            assert!(begin < end);
            assert_eq!((bucket(begin), bucket(end - 1)), (index, index), "{begin}..{end}");
            // A quarter of the value at most.
            assert!(end - begin <= (begin / 4).max(1));
            begin = end;
        }
        assert_eq!((bucket(begin), bucket(u64::MAX)), (BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn quantiles_are_those_of_the_values_as_far_as_buckets_tell() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(500), None);
        for value in 1..=1000_u64 {
            histogram.counts[bucket(value)] += 1;
            histogram.sum += value;
            histogram.most = value;
        }
        for (thousandths, wanted) in [(500, 500), (990, 990), (1000, 1000), (1, 1)] {
            let found = histogram.quantile(thousandths).expect("there are values");
            assert!((wanted..=wanted + wanted / 4).contains(&found), "{thousandths}: {found}");
        }
        let mut twice = histogram.clone();
        twice.add(&histogram);
        assert_eq!((twice.count(), twice.sum), (2000, 2 * histogram.sum));
        assert_eq!(twice.since(&histogram).counts, histogram.counts);
    }
}
