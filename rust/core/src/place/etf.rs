//! m-ETF: memory-constrained earliest task first.
//!
//! Decides, one op at a time, which ready op starts earliest and on which device, among the devices that have
//! room for it (Baechi, SoCC 2020, section 3; the classical ETF is Hwang et al. 1989). Inputs: a problem;
//! result: its schedule. With P devices and E edges, O((ops + E) x P x log ops) time as long as few scores
//! change at once, and O(ops x P) space.
//!
//! `a -> b, a -> c, b -> d, c -> d`, all 1 ns, transfers 10 ns, two devices: everything on the first
//! device, `a 0, b 1, c 2, d 3`; starting `c` on the second at 11 would be later.

use crate::error::Result;
use crate::request::Request;
use crate::schedule::Schedule;

/// m-ETF.
pub fn plain(request: &Request) -> Result<Schedule> {
    request.list_schedule(false, None)
}

/// m-ETF that keeps room for the rest of a colocation group when its first op is placed.
pub fn reserve(request: &Request) -> Result<Schedule> {
    request.list_schedule(true, None)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{request, with_request};
    use super::*;
    use crate::rules::Rules;

    #[test]
    fn a_diamond_with_dear_transfers_stays_on_one_device() {
        let edges = [(0, 1, 0), (0, 2, 0), (1, 3, 0), (2, 3, 0)];
        for rules in [Rules::Physical, Rules::BaechiTf, Rules::BaechiTorch] {
            with_request(&[1; 4], &edges, 10, rules, |request| {
                let schedule = plain(request).unwrap();
                assert_eq!(schedule.start, [0, 1, 2, 3]);
                assert_eq!(schedule.device, [0; 4]);
            });
        }
    }

    #[test]
    fn reserving_is_not_offered_under_torch_rules() {
        with_request(&[1; 2], &[(0, 1, 0)], 10, Rules::BaechiTorch, |given| {
            assert!(reserve(&request(given.problem, Rules::BaechiTorch)).is_err());
        });
    }
}
