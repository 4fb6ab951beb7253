#include "tree.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

namespace {

// ---- the format, as in LMDB's mdb.c, on a 64-bit machine ----

constexpr uint32_t kMagic = 0xBEEFC0DE, kVersion = 1;
constexpr uint64_t kMetas = 2, kNone = ~uint64_t{0};
constexpr uint16_t kBranch = 1, kLeaf = 2, kOverflow = 4, kMeta = 8;  // of a page
constexpr uint16_t kBig = 1;                                         // of a node: its value is on overflow pages
constexpr uint16_t kIntegerKey = 8;                                  // of the tree of free pages
constexpr int kDeepest = 32;
constexpr uint64_t kLongestKey = 511;

struct PageHead {
  uint64_t number;
  uint16_t unused, flags;
  uint16_t lower, upper;  // end of the nodes' offsets, and start of the nodes; on overflow pages, the number of pages
};
struct NodeHead {
  uint16_t low, high, flags, key_bytes;  // low and high: bytes of the value; with flags: a branch's child
};
struct Tree {
  uint32_t page_bytes;
  uint16_t flags, depth;
  uint64_t branches, leaves, overflow, entries, root;
};
struct Meta {
  uint32_t magic, version;
  uint64_t address, map_bytes;
  Tree free, main;
  uint64_t last, transaction;
};
static_assert(sizeof(PageHead) == 16 && sizeof(NodeHead) == 8 && sizeof(Tree) == 48 && sizeof(Meta) == 136,
              "part of the format");

using Problem = const char*;
using Bytes = std::string_view;

struct Node {
  Bytes key, value;  // a big value is the number of its first page
  uint64_t child;    // of a branch
  uint64_t length;   // of a leaf's value
  bool big;
};

template <typename T>
T read_as(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

bool is_less(Bytes one, Bytes other, bool integers) {
  if (integers) return read_as<uint64_t>(one.data()) < read_as<uint64_t>(other.data());
  return one < other;
}

// ---- the file ----

class File {
 public:
  File(int descriptor, uint64_t page_bytes) : descriptor_(descriptor), page_bytes_(page_bytes) {
    struct stat status;
    if (fstat(descriptor, &status) == 0) pages_ = static_cast<uint64_t>(status.st_size) / page_bytes;
  }

  uint64_t pages() const { return pages_; }
  uint64_t page_bytes() const { return page_bytes_; }
  uint64_t pages_of(uint64_t length) const { return (sizeof(PageHead) - 1 + length) / page_bytes_ + 1; }

  bool read(uint64_t page, char* to, uint64_t bytes) const {
    for (uint64_t done = 0; done < bytes;) {
      const ssize_t got = pread(descriptor_, to + done, bytes - done, static_cast<off_t>(page * page_bytes_ + done));
      if (got <= 0) return false;
      done += static_cast<uint64_t>(got);
    }
    return true;
  }

  void will_read(uint64_t page) const {
    posix_fadvise(descriptor_, static_cast<off_t>(page * page_bytes_), static_cast<off_t>(page_bytes_),
                  POSIX_FADV_WILLNEED);
  }

 private:
  int descriptor_;
  uint64_t page_bytes_, pages_ = 0;
};

Problem check_meta(const File& file, uint64_t number, Meta* meta) {
  std::vector<char> page(sizeof(PageHead) + sizeof(Meta));
  if (!file.read(number, page.data(), page.size())) return "a meta page cannot be read";
  const auto head = read_as<PageHead>(page.data());
  *meta = read_as<Meta>(page.data() + sizeof(PageHead));
  if (head.number != number || head.flags != kMeta || meta->magic != kMagic || meta->version != kVersion)
    return "a meta page is none";
  if (meta->free.page_bytes != file.page_bytes() || meta->free.flags != kIntegerKey || meta->main.flags != 0)
    return "a meta page has another size of pages, or other flags";
  if (meta->last < kMetas - 1 || meta->last >= file.pages() || meta->map_bytes / file.page_bytes() <= meta->last)
    return "the file is shorter than a meta page says";
  return nullptr;
}

// The newer meta page, as LMDB chooses it.
Problem find_meta(const File& file, Meta* newest) {
  Meta metas[kMetas];
  for (uint64_t number = 0; number < kMetas; ++number)
    if (Problem problem = check_meta(file, number, &metas[number])) return problem;
  const uint64_t one = metas[0].transaction, two = metas[1].transaction;
  const bool fresh = one == 0 && two == 0;
  if (!fresh && (one % 2 != 0 || two % 2 != 1 || (one + 1 != two && two + 1 != one)))
    return "the meta pages are not of transactions that follow each other";
  *newest = metas[one < two];
  return nullptr;
}

// ---- pages ----

Node node_at(const char* page, uint64_t offset, bool is_leaf) {
  const auto head = read_as<NodeHead>(page + offset);
  const char* key = page + offset + sizeof(NodeHead);
  Node node{Bytes(key, head.key_bytes), Bytes(), 0, 0, false};
  const uint64_t low = head.low | uint64_t{head.high} << 16;
  if (!is_leaf) {
    node.child = low | uint64_t{head.flags} << 32;
    return node;
  }
  node.big = head.flags == kBig;
  node.length = low;
  node.value = Bytes(key + head.key_bytes, node.big ? sizeof(uint64_t) : low);
  return node;
}

uint64_t bytes_of(const Node& node) {
  const uint64_t bytes = sizeof(NodeHead) + node.key.size() + node.value.size();
  return bytes + bytes % 2;
}

// Whether the nodes of a page are contiguous from its `upper` to its end, and of a kind that the page may have.
bool has_sound_nodes(const char* page, uint64_t page_bytes, bool is_leaf, std::vector<uint16_t>* offsets) {
  const auto head = read_as<PageHead>(page);
  if (head.lower < sizeof head || head.lower % 2 != 0 || head.lower > head.upper || head.upper > page_bytes) return false;
  offsets->resize((head.lower - sizeof head) / 2);
  std::memcpy(offsets->data(), page + sizeof head, offsets->size() * 2);
  std::vector<uint16_t> ascending(*offsets);
  std::sort(ascending.begin(), ascending.end());
  uint64_t next = head.upper;
  for (uint64_t offset : ascending) {
    if (offset != next || offset + sizeof(NodeHead) > page_bytes) return false;
    const auto node = read_as<NodeHead>(page + offset);
    if (is_leaf && node.flags != 0 && node.flags != kBig) return false;
    next += bytes_of(node_at(page, offset, is_leaf));
    if (node.key_bytes > kLongestKey || next > page_bytes) return false;
  }
  return next == page_bytes;
}

// ---- trees ----

class Walk {
 public:
  Walk(const File& file, const Meta& meta) : file_(file), last_(meta.last), used_(meta.last + 1) {
    std::fill_n(used_.begin(), kMetas, true);
  }

  Problem follow(const Tree& tree, bool is_free) {
    is_free_ = is_free;
    counted_ = Tree{};
    if (tree.root == kNone && tree.depth != 0) return "an empty tree has a depth";
    if (tree.root != kNone) {
      if (tree.depth == 0 || tree.depth > kDeepest) return "a tree has an impossible depth";
      if (Problem problem = follow_page(tree.root, tree.depth, Bytes(), Bytes())) return problem;
    }
    if (tree.branches != counted_.branches || tree.leaves != counted_.leaves ||
        tree.overflow != counted_.overflow || tree.entries != counted_.entries)
      return "a tree has other numbers of pages or entries than its meta page says";
    return nullptr;
  }

  // To be called after both trees have been followed.
  Problem check_free_pages() {
    for (uint64_t page : free_)
      if (!use(page, 1)) return "a page is free and in use, or twice free";
    return nullptr;
  }

 private:
  // Marks pages; returns false if one is not a page of the file, or is marked already.
  bool use(uint64_t first, uint64_t count) {
    if (first > last_ || count > last_ + 1 - first) return false;
    const auto begin = used_.begin() + static_cast<std::ptrdiff_t>(first), end = begin + static_cast<std::ptrdiff_t>(count);
    if (std::find(begin, end, true) != end) return false;
    std::fill(begin, end, true);
    return true;
  }

  // Follows a page whose keys are >= `from` and < `until`, if given; `depth` levels above the leaves.
  Problem follow_page(uint64_t number, int depth, Bytes from, Bytes until) {
    std::vector<char> page(file_.page_bytes());
    std::vector<uint16_t> offsets;
    const bool is_leaf = depth == 1;
    if (!use(number, 1)) return "a page of a tree is outside the file, or in two places";
    if (!file_.read(number, page.data(), page.size())) return "a page of a tree cannot be read";
    const auto head = read_as<PageHead>(page.data());
    if (head.number != number || head.flags != (is_leaf ? kLeaf : kBranch)) return "a page of a tree is another one";
    if (!has_sound_nodes(page.data(), page.size(), is_leaf, &offsets)) return "the entries of a page are in disorder";
    if (offsets.size() < (is_leaf ? 1 : 2)) return "a page of a tree has too few entries";
    std::vector<Node> nodes;
    for (uint64_t offset : offsets) nodes.push_back(node_at(page.data(), offset, is_leaf));
    if (!is_leaf) nodes[0].key = from;  // stands for all smaller keys
    if (Problem problem = check_keys(nodes, is_leaf ? 0 : 1, from, until)) return problem;
    (is_leaf ? counted_.leaves : counted_.branches) += 1;
    return is_leaf ? take_values(nodes) : follow_children(nodes, depth, until);
  }

  Problem check_keys(const std::vector<Node>& nodes, size_t first, Bytes from, Bytes until) const {
    for (size_t number = first; number < nodes.size(); ++number) {
      const Bytes key = nodes[number].key;
      if (key.empty() || (is_free_ && key.size() != sizeof(uint64_t))) return "a key has an impossible length";
      const bool has_before = number > first;
      if (has_before && !is_less(nodes[number - 1].key, key, is_free_)) return "keys are not in their order";
      if (!has_before && !from.empty() && is_less(key, from, is_free_)) return "keys are in another page's place";
      if (!until.empty() && !is_less(key, until, is_free_)) return "keys are in another page's place";
    }
    return nullptr;
  }

  Problem follow_children(const std::vector<Node>& nodes, int depth, Bytes until) {
    for (const Node& node : nodes)
      if (node.child <= last_) file_.will_read(node.child);
    for (size_t number = 0; number < nodes.size(); ++number) {
      const Bytes next = number + 1 < nodes.size() ? nodes[number + 1].key : until;
      if (Problem problem = follow_page(nodes[number].child, depth - 1, nodes[number].key, next)) return problem;
    }
    return nullptr;
  }

  Problem take_values(const std::vector<Node>& nodes) {
    counted_.entries += nodes.size();
    for (const Node& node : nodes) {
      const uint64_t pages = node.big ? file_.pages_of(node.length) : 0;
      counted_.overflow += pages;
      if (node.big && !use(read_as<uint64_t>(node.value.data()), pages))
        return "a value is outside the file, or in the place of something else";
      if (is_free_)
        if (Problem problem = take_free_pages(node)) return problem;
    }
    return nullptr;
  }

  // A value in the tree of free pages: their count, then the page numbers in descending order.
  Problem take_free_pages(const Node& node) {
    std::vector<char> own;
    const char* numbers = node.value.data();
    if (node.big) {
      const auto first = read_as<uint64_t>(node.value.data());
      own.resize(sizeof(PageHead) + node.length);
      if (!file_.read(first, own.data(), own.size())) return "the list of free pages cannot be read";
      const auto pages = read_as<uint32_t>(own.data() + 12);
      const auto head = read_as<PageHead>(own.data());
      if (head.number != first || head.flags != kOverflow || pages != file_.pages_of(node.length))
        return "the list of free pages is in another page's place";
      numbers = own.data() + sizeof(PageHead);
    }
    if (node.length < sizeof(uint64_t)) return "the list of free pages is cut off";
    const auto count = read_as<uint64_t>(numbers);
    if (count > node.length / sizeof(uint64_t) - 1) return "the list of free pages is cut off";
    for (uint64_t number = 1; number <= count; ++number) {
      const auto page = read_as<uint64_t>(numbers + number * sizeof(uint64_t));
      if (number > 1 && page >= free_.back()) return "the list of free pages is in disorder";
      free_.push_back(page);
    }
    return nullptr;
  }

  const File& file_;
  uint64_t last_;
  std::vector<bool> used_;
  std::vector<uint64_t> free_;
  bool is_free_ = false;
  Tree counted_{};
};

// Finds the first overflow page of a key's value and the value's length in bytes; false if it has no such pages.
bool find_value(const File& file, const Tree& tree, Bytes key, uint64_t* first, uint64_t* length) {
  std::vector<char> page(file.page_bytes());
  std::vector<uint16_t> offsets;
  uint64_t number = tree.root;
  for (int depth = tree.depth; depth > 0 && number != kNone; --depth) {
    const bool is_leaf = depth == 1;
    if (!file.read(number, page.data(), page.size())) return false;
    if (!has_sound_nodes(page.data(), page.size(), is_leaf, &offsets) || offsets.empty()) return false;
    size_t place = 0;
    while (place + 1 < offsets.size() && node_at(page.data(), offsets[place + 1], is_leaf).key <= key) ++place;
    const Node node = node_at(page.data(), offsets[place], is_leaf);
    if (is_leaf) {
      if (node.key != key || !node.big) return false;
      *first = read_as<uint64_t>(node.value.data());
      *length = node.length;
      return true;
    }
    number = node.child;
  }
  return false;
}

}  // namespace

extern "C" const char* datacache_tree_check(int file, uint64_t page_bytes) {
  const File whole(file, page_bytes);
  Meta meta;
  if (Problem problem = find_meta(whole, &meta)) return problem;
  Walk walk(whole, meta);
  if (Problem problem = walk.follow(meta.free, true)) return problem;
  if (Problem problem = walk.follow(meta.main, false)) return problem;
  return walk.check_free_pages();
}

extern "C" const char* datacache_tree_mend_value(int file, uint64_t page_bytes, const uint8_t* key,
                                                 uint64_t key_bytes) {
  const File whole(file, page_bytes);
  Meta meta;
  uint64_t first, length;
  if (Problem problem = find_meta(whole, &meta)) return problem;
  const Bytes wanted(reinterpret_cast<const char*>(key), key_bytes);
  if (!find_value(whole, meta.main, wanted, &first, &length)) return nullptr;
  PageHead head{first, 0, kOverflow, 0, 0};
  const auto pages = static_cast<uint32_t>(whole.pages_of(length));
  std::memcpy(&head.lower, &pages, sizeof pages);
  char there[sizeof head];
  if (!whole.read(first, there, sizeof there)) return "its pages cannot be read";
  if (std::memcmp(there, &head, sizeof head) == 0) return nullptr;
  const ssize_t written = pwrite(file, &head, sizeof head, static_cast<off_t>(first * page_bytes));
  return written == static_cast<ssize_t>(sizeof head) ? nullptr : "its pages cannot be written";
}
