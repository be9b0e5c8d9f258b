//! Static rates: `ibv_rate_to_mult(3)`, `ibv_rate_to_mbps(3)` and the ways back. One table answers
//! all of them.

use core::ffi::c_int;

use abi::{IBV_RATE_MAX, ibv_rate};

/// Rate, multiple of 2.5 Gbit/s where rdma-core gives one, Mbit/s.
static RATES: [(ibv_rate, Option<c_int>, c_int); 23] = [
    (abi::IBV_RATE_2_5_GBPS, Some(1), 2500),
    (abi::IBV_RATE_10_GBPS, Some(4), 10000),
    (abi::IBV_RATE_30_GBPS, Some(12), 30000),
    (abi::IBV_RATE_5_GBPS, Some(2), 5000),
    (abi::IBV_RATE_20_GBPS, Some(8), 20000),
    (abi::IBV_RATE_40_GBPS, Some(16), 40000),
    (abi::IBV_RATE_60_GBPS, Some(24), 60000),
    (abi::IBV_RATE_80_GBPS, Some(32), 80000),
    (abi::IBV_RATE_120_GBPS, Some(48), 120000),
    (abi::IBV_RATE_14_GBPS, None, 14062),
    (abi::IBV_RATE_56_GBPS, None, 56250),
    (abi::IBV_RATE_112_GBPS, None, 112500),
    (abi::IBV_RATE_168_GBPS, None, 168750),
    (abi::IBV_RATE_25_GBPS, None, 25781),
    (abi::IBV_RATE_100_GBPS, None, 103125),
    (abi::IBV_RATE_200_GBPS, None, 206250),
    (abi::IBV_RATE_300_GBPS, None, 309375),
    (abi::IBV_RATE_28_GBPS, Some(11), 28125),
    (abi::IBV_RATE_50_GBPS, Some(20), 53125),
    (abi::IBV_RATE_400_GBPS, Some(160), 425000),
    (abi::IBV_RATE_600_GBPS, Some(240), 637500),
    (abi::IBV_RATE_800_GBPS, Some(320), 850000),
    (abi::IBV_RATE_1200_GBPS, Some(480), 1275000),
];

/// `ibv_rate_to_mult(3)`: -1 when the rate is none or no multiple.
pub(crate) extern "C" fn rate_to_mult(rate: ibv_rate) -> c_int {
    RATES.iter().find(|row| row.0 == rate).and_then(|row| row.1).unwrap_or(-1)
}

/// `mult_to_ibv_rate(3)`: the maximum for an unknown rate.
pub(crate) extern "C" fn mult_to_rate(mult: c_int) -> ibv_rate {
    RATES.iter().find(|row| row.1 == Some(mult)).map_or(IBV_RATE_MAX, |row| row.0)
}

/// `ibv_rate_to_mbps(3)`: -1 for an unknown rate.
pub(crate) extern "C" fn rate_to_mbps(rate: ibv_rate) -> c_int {
    RATES.iter().find(|row| row.0 == rate).map_or(-1, |row| row.2)
}

/// `mbps_to_ibv_rate(3)`: exact matches only, else the maximum.
pub(crate) extern "C" fn mbps_to_rate(mbps: c_int) -> ibv_rate {
    RATES.iter().find(|row| row.2 == mbps).map_or(IBV_RATE_MAX, |row| row.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_conversion_equals_rdma_cores() {
        let rows: Vec<Vec<&str>> = include_str!("../../c-tests/data/rates-v44.tsv")
            .lines()
            .skip(1)
            .map(|line| line.split('\t').collect())
            .collect();
        for row in &rows {
            let number = |column: usize| row[column].parse::<c_int>().expect("a number");
            let rate = number(1).cast_unsigned();
            assert_eq!(rate_to_mult(rate), number(2), "{row:?}");
            assert_eq!(mult_to_rate(number(2)), number(3).cast_unsigned(), "{row:?}");
            assert_eq!(rate_to_mbps(rate), number(4), "{row:?}");
            assert_eq!(mbps_to_rate(number(4)), number(5).cast_unsigned(), "{row:?}");
        }
        assert_eq!(rows.len(), RATES.len() + 1);
        assert_eq!((rate_to_mult(1), rate_to_mbps(99), mult_to_rate(3)), (-1, -1, 0));
    }
}
