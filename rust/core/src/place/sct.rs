//! m-SCT: memory-constrained small communication times.
//!
//! Decides like m-ETF, but a device that just ran an op may stay idle for that op's favorite child (Baechi, SoCC 2020,
//! section 3, after Hanen and Munier 1995), unless another op is urgent. Inputs: a problem and the favorite child of each op, from the
//! linear program or the greedy rule; result: its schedule. Time as for m-ETF plus O(ready ops) while a device
//! waits; space O(ops x P).
//!
//! `a -> b (1), a -> c (9)`: with `c` the favorite of `a`, the device of `a` takes `c` although `b` is first
//! in order, and `b` goes to the other device: `a 0, c 1` and `b 2`.

use crate::error::{Error, Result};
use crate::request::Request;
use crate::schedule::Schedule;

/// m-SCT.
pub fn plain(request: &Request) -> Result<Schedule> {
    request.list_schedule(false, Some(favorites(request)?))
}

/// m-SCT that keeps room for the rest of a colocation group when its first op is placed.
pub fn reserve(request: &Request) -> Result<Schedule> {
    request.list_schedule(true, Some(favorites(request)?))
}

fn favorites<'r>(request: &'r Request) -> Result<&'r [i32]> {
    let favorites = request
        .favorites
        .ok_or_else(|| Error::Unsupported { what: "m-sct without favorites".into() })?;
    let num_ops = request.problem.graph.num_ops;
    if favorites.len() != num_ops {
        return Err(Error::Shape { what: "favorites", expected: num_ops, found: favorites.len() });
    }
    let bad =
        |child: &i32| *child < -1 || usize::try_from(*child).is_ok_and(|child| child >= num_ops);
    if let Some(index) = favorites.iter().position(bad) {
        let value = i64::from(favorites[index]);
        return Err(Error::Value { what: "favorites", index, value });
    }
    Ok(favorites)
}

#[cfg(test)]
mod tests {
    use super::super::tests::with_request;
    use super::*;
    use crate::rules::Rules;

    #[test]
    fn a_device_takes_the_favorite_child_before_an_earlier_op() {
        for rules in [Rules::Physical, Rules::BaechiTf, Rules::BaechiTorch] {
            with_request(&[1, 5, 5], &[(0, 1, 0), (0, 2, 0)], 1, rules, |given| {
                let with = Request {
                    favorites: Some(&[2, -1, -1]),
                    ..super::super::tests::request(given.problem, rules)
                };
                let schedule = plain(&with).unwrap();
                assert_eq!(schedule.start, [0, 2, 1]);
                assert_eq!(schedule.device, [0, 1, 0]);
            });
        }
    }

    #[test]
    fn favorites_out_of_range_are_refused() {
        with_request(&[1, 5], &[(0, 1, 0)], 1, Rules::Physical, |given| {
            let with = Request {
                favorites: Some(&[7, -1]),
                ..super::super::tests::request(given.problem, Rules::Physical)
            };
            let expected = Error::Value { what: "favorites", index: 0, value: 7 };
            assert_eq!(plain(&with).unwrap_err(), expected);
        });
    }
}
