/* Disks: what came into the page cache for whom, and what the devices did. */

#define PAGE_SHIFT 12
#define SECTOR_SHIFT 9

struct request { u64 sector; u32 device; u32 pad; };
BPF_TABLE("lru_hash", struct request, u64, requests, 8192); /* -> when it was issued */
BPF_HASH(pages, struct pages_key, struct pages_value, 65536);              /* -> bytes */
BPF_HASH(blocks, struct block_key, struct block_value, 4096);

TRACEPOINT_PROBE(filemap, mm_filemap_add_to_page_cache) {
  u32 pid = current_pid();
  u64 *start_ns = tracked.lookup(&pid);
  if (!start_ns) return 0;
  struct pages_key k = {.pid = pid, .start_ns = *start_ns};
  k.bucket = bpf_ktime_get_ns() / BUCKET_NS;
  k.inode = args->i_ino;
  k.device = args->s_dev;
#ifdef HAVE_ORDER
  struct pages_value one = {.added_bytes = 1ull << (PAGE_SHIFT + (args->order & 31))};
#else
  struct pages_value one = {.added_bytes = 1ull << PAGE_SHIFT};
#endif
  struct pages_value *sum = pages.lookup(&k);
  if (sum)
    __sync_fetch_and_add(&sum->added_bytes, one.added_bytes);
  else if (pages.update(&k, &one))
    count_lost(KIND_PAGES);
  return 0;
}

TRACEPOINT_PROBE(block, block_rq_issue) {
  if (args->rwbs[0] != 'R') return 0;
  struct request r = {.sector = args->sector, .device = args->dev};
  u64 now_ns = bpf_ktime_get_ns();
  requests.update(&r, &now_ns);
  return 0;
}

TRACEPOINT_PROBE(block, block_rq_complete) {
  struct request r = {.sector = args->sector, .device = args->dev};
  u64 *issued_ns = requests.lookup(&r);
  if (!issued_ns) return 0;
  u64 now_ns = bpf_ktime_get_ns();
  struct block_key k = {.bucket = now_ns / BUCKET_NS, .device = args->dev};
  struct block_value one = {.requests = 1, .busy_ns = now_ns - *issued_ns};
  one.read_bytes = (u64)args->nr_sector << SECTOR_SHIFT;
  requests.delete(&r);
  struct block_value *sum = blocks.lookup(&k);
  if (!sum) {
    if (blocks.update(&k, &one)) count_lost(KIND_BLOCK);
    return 0;
  }
  __sync_fetch_and_add(&sum->requests, one.requests);
  __sync_fetch_and_add(&sum->read_bytes, one.read_bytes);
  __sync_fetch_and_add(&sum->busy_ns, one.busy_ns);
  return 0;
}
