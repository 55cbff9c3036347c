//! Shares of a net by the greedy rule, in linear time.

use super::net::Net;

/// In topological order, the latest arrival at each receiver is spared its cost if its sender has spared nothing yet.
///
/// `a -> c (1), b -> c (9)`: the edge from `b` is spared. O(edges).
#[must_use]
pub fn shares(net: &Net) -> Vec<f64> {
    let stars = net.stars();
    let mut sent = vec![false; stars.num_senders];
    let mut time = vec![0.0_f64; net.num_nodes];
    let mut y = vec![0.0; net.edges.len()];
    for node in 1..net.num_nodes {
        let arrival = |at: u32| {
            let edge = &net.edges[at as usize];
            time[edge.tail as usize] + edge.longest()
        };
        let mut latest = 0.0_f64;
        for group in net.into(node).chunk_by(|a, b| {
            let star = |at: u32| stars.receiver[at as usize];
            star(*a) == star(*b)
        }) {
            let mut last = group[0];
            for at in &group[1..] {
                if arrival(*at) > arrival(last) {
                    last = *at;
                }
            }
            let star = stars.sender[last as usize];
            if star != super::net::NONE && !sent[star as usize] {
                sent[star as usize] = true;
                y[last as usize] = 1.0;
            }
            for at in group {
                let edge = &net.edges[*at as usize];
                latest = latest.max(arrival(*at) - edge.cost * y[*at as usize]);
            }
        }
        time[node] = latest;
    }
    y
}

#[cfg(test)]
mod tests {
    use super::super::net::tests::net;

    #[test]
    fn the_latest_arrival_is_spared() {
        let net = net(4, &[(0, 1, 0.0, 0.0), (0, 2, 0.0, 0.0), (1, 3, 1.0, 1.0), (2, 3, 1.0, 9.0)]);
        assert_eq!(super::shares(&net), [0.0, 0.0, 0.0, 1.0]);
    }
}
