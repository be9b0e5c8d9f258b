//! Log-linear histograms of the layer `stats`: four buckets for each power of two. So a value is
//! known to a quarter of itself, from a nanosecond to two minutes.

/// Number of buckets.
pub const BUCKETS: usize = 144;

/// The bucket of a value. The last bucket has all larger values.
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

/// The smallest value above a bucket.
#[must_use]
pub fn end(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64 + 1;
    }
    let (exponent, quarter) = (bucket / 4 + 1, bucket as u64 % 4);
    (5 + quarter) << (exponent - 2)
}

/// Counts of values by bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The number of values in each bucket.
    pub counts: [u64; BUCKETS],
    /// The sum of all values.
    pub sum: u64,
    /// The largest value.
    pub max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum: 0, max: 0 }
    }
}

impl Histogram {
    /// The number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The value that a share of all values does not exceed, to the precision of the buckets. The
    /// share is in thousandths. `None` for an empty histogram.
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
                // The last bucket has no upper bound.
                return Some(
                    if index + 1 == BUCKETS { self.max } else { end(index) - 1 }.min(self.max),
                );
            }
        }
        Some(self.max)
    }

    /// Adds the values of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (mine, more) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*more);
        }
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// The values since an earlier copy of the same histogram. `max` remains the largest of all
    /// values.
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
            // A bucket is at most a quarter of its first value wide.
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
            histogram.max = value;
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
