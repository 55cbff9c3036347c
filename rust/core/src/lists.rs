//! Lists of indices, one per key, in two allocations.

/// A list of indices per item, in one allocation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lists {
    start: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    /// Groups the pairs by key, keeping their order within a key.
    pub fn group<I>(num_keys: usize, pairs: I) -> Self
    where
        I: Iterator<Item = (u32, u32)> + Clone,
    {
        let mut start = vec![0_u32; num_keys + 1];
        for (key, _) in pairs.clone() {
            start[key as usize + 1] += 1;
        }
        for key in 0..num_keys {
            start[key + 1] += start[key];
        }
        let mut next = start.clone();
        let mut items = vec![0_u32; start[num_keys] as usize];
        for (key, item) in pairs {
            let at = &mut next[key as usize];
            items[*at as usize] = item;
            *at += 1;
        }
        Self { start, items }
    }

    /// The items of one key.
    #[must_use]
    pub fn of(&self, key: u32) -> &[u32] {
        let key = key as usize;
        &self.items[self.start[key] as usize..self.start[key + 1] as usize]
    }

    /// Sorts the items of every key.
    pub fn sort_each_by_key<K: Ord>(&mut self, rank: impl Fn(&u32) -> K) {
        for key in 1..self.start.len() {
            let items = &mut self.items[self.start[key - 1] as usize..self.start[key] as usize];
            if !items.is_sorted_by_key(&rank) {
                items.sort_unstable_by_key(&rank);
            }
        }
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.start.len().saturating_sub(1)
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All items, key by key.
    #[must_use]
    pub fn all(&self) -> &[u32] {
        &self.items
    }

    /// The same lists with every item only where it is first, per key; items are below `num_items`.
    #[must_use]
    pub fn without_repeats(&self, num_items: usize) -> Self {
        let mut seen_by = vec![u32::MAX; num_items];
        let mut start = Vec::with_capacity(self.start.len());
        let mut items = Vec::with_capacity(self.items.len());
        start.push(0);
        for key in 0..u32::try_from(self.len()).expect("checked to fit 31 bits") {
            for item in self.of(key) {
                if seen_by[*item as usize] != key {
                    seen_by[*item as usize] = key;
                    items.push(*item);
                }
            }
            start.push(u32::try_from(items.len()).expect("not more than there were"));
        }
        Self { start, items }
    }
}
