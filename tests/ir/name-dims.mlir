// RUN: %disc_opt %s --passes=name-dims --stage=named | %filecheck %s

// The size of an argument flows through a shape operand; the dead arithmetic goes.
// CHECK-LABEL: module {
// CHECK: "disc.symbolic_dim"() {{.*}}min = 0 : i64, source = "arg0.0", sym_name = "S0"
// CHECK-NEXT: func.func @main(%[[X:.*]]: tensor<?x768xf32, [@S0, 768]>) -> tensor<?x12x64xf32, [@S0, 12, 64]> {
// CHECK-NEXT: %[[Y:.*]] = "disc.reshape"(%[[X]])
// CHECK-NEXT: return %[[Y]]
func.func @main(%x: tensor<?x768xf32>) -> tensor<?x12x64xf32> {
  %c0 = arith.constant 0 : index
  %c12 = arith.constant 12 : index
  %c64 = arith.constant 64 : index
  %n = tensor.dim %x, %c0 : tensor<?x768xf32>
  %s = tensor.from_elements %n, %c12, %c64 : tensor<3xindex>
  %y = stablehlo.dynamic_reshape %x, %s : (tensor<?x768xf32>, tensor<3xindex>) -> tensor<?x12x64xf32>
  return %y : tensor<?x12x64xf32>
}

// -----
// Front-end symbols with their ranges; one that occurs only as a multiple; one given by a scalar argument.
// CHECK-LABEL: module attributes
// CHECK: divisor = 1 : i64, max = 512 : i64, min = 0 : i64, source = "arg0.0", sym_name = "S0"
// CHECK: divisor = 1 : i64, min = 0 : i64, source = "arg1", sym_name = "S1"
// CHECK: divisor = 2 : i64, max = 20 : i64, min = 2 : i64, source = "arg0.1", sym_name = "S2"
// CHECK: divisor = 1 : i64, expr = "S0 + floordiv(S2, 2)", max = 522 : i64, min = 1 : i64, sym_name = "S3"
// CHECK: func.func @main(%{{.*}}: tensor<?x?xf32, [@S0, @S2]> {{.*}}, %{{.*}}: i64 {{.*}}, %{{.*}}: tensor<?xf32, [@S3]>
// CHECK-SAME: -> tensor<?xf32, [@S1]>
// CHECK: "disc.iota"() {dim = 0 : i64} : () -> tensor<?xf32, [@S1]>
module attributes {disc.symbols = {s0 = {min = 0 : i64, max = 512 : i64}, s1 = {min = 1 : i64, max = 10 : i64}}} {
func.func @main(%x: tensor<?x?xf32> {disc.dims = ["s0", "2*s1"]}, %k: i64 {disc.symbol = "s2"}, %z: tensor<?xf32> {disc.dims = ["s0 + s1"]}) -> tensor<?xf32> {
  %s = tensor.from_elements %k : tensor<1xi64>
  %y = stablehlo.dynamic_iota %s, dim = 0 : (tensor<1xi64>) -> tensor<?xf32>
  return %y : tensor<?xf32>
}
}

// -----
// Sibling constraint: the contracting dims are equal, which unites two base symbols and is checked on entry.
// CHECK-LABEL: module {
// CHECK: "disc.relation"() {lhs = "S2", rhs = "S1"}
// CHECK: func.func @main(%[[A:.*]]: tensor<?x?xf32, [@S0, @S1]>, %[[B:.*]]: tensor<?x?xf32, [@S1, @S3]>) -> tensor<?x?xf32, [@S0, @S3]>
// CHECK: stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [1] x [0] : {{.*}} -> tensor<?x?xf32, [@S0, @S3]>
func.func @main(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %c = stablehlo.dot %a, %b : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  return %c : tensor<?x?xf32>
}

// -----
// A fact learnt late decides what stands before it: both broadcasts disappear.
// CHECK-LABEL: module {
// CHECK: %[[SUM:.*]] = stablehlo.add %[[A:.*]], %[[B:.*]] : tensor<?xf32, [@S0]>
// CHECK-NEXT: stablehlo.multiply %[[SUM]], %[[SUM]] : tensor<?xf32, [@S0]>
func.func @main(%a: tensor<?xf32>, %b: tensor<?xf32>) -> (tensor<?xf32>, tensor<?xf32>) {
  %sum = chlo.broadcast_add %a, %b : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %square = chlo.broadcast_multiply %sum, %sum : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %both = stablehlo.subtract %a, %b : tensor<?xf32>
  return %square, %both : tensor<?xf32>, tensor<?xf32>
}

// -----
// Undecided dims: the larger size unless one of the two is 0, and both operands say `maybe`.
// CHECK-LABEL: module {
// CHECK: expr = "max(S0, S1) * min(min(S0, S1), 1)", min = 0 : i64, sym_name = "S2"
// CHECK: %[[L:.*]] = "disc.broadcast_in_dim"(%{{.*}}) {dims = array<i64: 0>, maybe = array<i64: 0>} : (tensor<?xf32, [@S0]>) -> tensor<?xf32, [@S2]>
// CHECK: %[[R:.*]] = "disc.broadcast_in_dim"(%{{.*}}) {dims = array<i64: 0>, maybe = array<i64: 0>} : (tensor<?xf32, [@S1]>) -> tensor<?xf32, [@S2]>
// CHECK: stablehlo.compare GT, %[[L]], %[[R]], FLOAT : {{.*}} -> tensor<?xi1, [@S2]>
func.func @main(%a: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<?xi1> {
  %c = chlo.broadcast_compare %a, %b {compare_type = #chlo<comparison_type FLOAT>, comparison_direction = #chlo<comparison_direction GT>} : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xi1>
  return %c : tensor<?xi1>
}

// -----
// A rank-0 operand and a shorter one; a `?` that is proved constant becomes static.
// CHECK-LABEL: module {
// CHECK: func.func @main(%[[A:.*]]: tensor<?x4xf32, [@S0, 4]>, %[[B:.*]]: tensor<4xf32, [4]>, %[[C:.*]]: tensor<f32>) -> tensor<?x4xf32, [@S0, 4]>
// CHECK: "disc.broadcast_in_dim"(%[[B]]) {dims = array<i64: 1>, maybe = array<i64>}
// CHECK: "disc.broadcast_in_dim"(%[[C]]) {dims = array<i64>, maybe = array<i64>}
func.func @main(%a: tensor<?x4xf32>, %b: tensor<4xf32>, %c: tensor<f32>) -> tensor<?x?xf32> {
  %0 = chlo.broadcast_add %a, %b : (tensor<?x4xf32>, tensor<4xf32>) -> tensor<?x?xf32>
  %1 = chlo.broadcast_multiply %0, %c : (tensor<?x?xf32>, tensor<f32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}

// -----
// Sizes as data: the mean divides by the size.
// CHECK-LABEL: module {
// CHECK: %[[N:.*]] = "disc.dim_value"() {expr = "S0"} : () -> tensor<i64>
// CHECK-NEXT: %[[F:.*]] = stablehlo.convert %[[N]] : (tensor<i64>) -> tensor<f32>
// CHECK: stablehlo.divide %{{.*}}, %[[F]] : tensor<f32>
func.func @main(%a: tensor<?xf32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %c0 = arith.constant 0 : index
  %n = tensor.dim %a, %c0 : tensor<?xf32>
  %n64 = arith.index_cast %n : index to i64
  %t = tensor.from_elements %n64 : tensor<1xi64>
  %r = stablehlo.reshape %t : (tensor<1xi64>) -> tensor<i64>
  %f = stablehlo.convert %r : (tensor<i64>) -> tensor<f32>
  %sum = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<?xf32>, tensor<f32>) -> tensor<f32>
  %mean = stablehlo.divide %sum, %f : tensor<f32>
  return %mean : tensor<f32>
}

// -----
// ceil(n / 2) computed in f64 is a size; the select of a comparison is a maximum.
// CHECK-LABEL: module {
// CHECK: expr = "floordiv(S0 + 1, 2)", min = 0 : i64, sym_name = "S1"
// CHECK: expr = "max(S0, 8)", min = 8 : i64, sym_name = "S2"
// CHECK: "disc.iota"() {dim = 0 : i64} : () -> tensor<?xi64, [@S1]>
// CHECK: "disc.iota"() {dim = 0 : i64} : () -> tensor<?xi64, [@S2]>
func.func @main(%a: tensor<?xf32>) -> (tensor<?xi64>, tensor<?xi64>) {
  %two = stablehlo.constant dense<2.0> : tensor<f64>
  %size = stablehlo.get_dimension_size %a, dim = 0 : (tensor<?xf32>) -> tensor<i32>
  %f = stablehlo.convert %size : (tensor<i32>) -> tensor<f64>
  %q = stablehlo.divide %f, %two : tensor<f64>
  %up = stablehlo.ceil %q : tensor<f64>
  %i = stablehlo.convert %up : (tensor<f64>) -> tensor<i64>
  %s = stablehlo.reshape %i : (tensor<i64>) -> tensor<1xi64>
  %y = stablehlo.dynamic_iota %s, dim = 0 : (tensor<1xi64>) -> tensor<?xi64>
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %n = tensor.dim %a, %c0 : tensor<?xf32>
  %less = arith.cmpi slt, %n, %c8 : index
  %most = arith.select %less, %c8, %n : index
  %t = tensor.from_elements %most : tensor<1xindex>
  %z = stablehlo.dynamic_iota %t, dim = 0 : (tensor<1xindex>) -> tensor<?xi64>
  return %y, %z : tensor<?xi64>, tensor<?xi64>
}

// -----
// Slices, pads and gathers keep only what the result type does not say.
// CHECK-LABEL: module {
// CHECK: "disc.slice"(%[[X:.*]]) {starts = ["1", "0"], strides = array<i64: 1, 1>} : {{.*}} -> tensor<?x8xf32, [@S2, 8]>
// CHECK: "disc.pad"(%[[X]], %{{.*}}) {interior = array<i64: 0, 0>, low = ["S0", "0"]} : {{.*}} -> tensor<?x8xf32, [@S3, 8]>
// CHECK: "disc.gather"(%[[X]], %{{.*}}) {dimension_numbers = #stablehlo.gather<{{.*}}>, sizes = ["1", "8"]} : {{.*}} -> tensor<?x8xf32, [@S1, 8]>
func.func @main(%x: tensor<?x8xf32>, %i: tensor<?xi64>) -> (tensor<?x8xf32>, tensor<?x8xf32>, tensor<?x8xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %none = arith.constant dense<0> : tensor<2xindex>
  %ones = arith.constant dense<1> : tensor<2xindex>
  %sizes = arith.constant dense<[1, 8]> : tensor<2xi64>
  %n = tensor.dim %x, %c0 : tensor<?x8xf32>
  %starts = tensor.from_elements %c1, %c0 : tensor<2xindex>
  %ends = tensor.from_elements %n, %c8 : tensor<2xindex>
  %low = tensor.from_elements %n, %c0 : tensor<2xindex>
  %a = stablehlo.real_dynamic_slice %x, %starts, %ends, %ones : (tensor<?x8xf32>, tensor<2xindex>, tensor<2xindex>, tensor<2xindex>) -> tensor<?x8xf32>
  %b = stablehlo.dynamic_pad %x, %zero, %low, %none, %none : (tensor<?x8xf32>, tensor<f32>, tensor<2xindex>, tensor<2xindex>, tensor<2xindex>) -> tensor<?x8xf32>
  %c = "stablehlo.dynamic_gather"(%x, %i, %sizes) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>} : (tensor<?x8xf32>, tensor<?xi64>, tensor<2xi64>) -> tensor<?x8xf32>
  return %a, %b, %c : tensor<?x8xf32>, tensor<?x8xf32>, tensor<?x8xf32>
}

// -----
// A strided window: the size of a convolution's result.
// CHECK-LABEL: module {
// CHECK: expr = "floordiv(S1 + 1, 2)", min = 0 : i64, sym_name = "S2"
// CHECK: stablehlo.convolution({{.*}} -> tensor<?x8x?xf32, [@S0, 8, @S2]>
func.func @main(%x: tensor<?x3x?xf32>, %k: tensor<8x3x3xf32>) -> tensor<?x8x?xf32> {
  %y = stablehlo.convolution(%x, %k) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {stride = [2], pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x3x?xf32>, tensor<8x3x3xf32>) -> tensor<?x8x?xf32>
  return %y : tensor<?x8x?xf32>
}

// -----
// Products: flattening and splitting again gives the dims back, also through a division by a dim.
// CHECK-LABEL: module {
// CHECK: expr = "S0 * S1", min = 0 : i64, sym_name = "S2"
// CHECK: %[[FLAT:.*]] = "disc.reshape"(%{{.*}}) : {{.*}} -> tensor<?x8xf32, [@S2, 8]>
// CHECK: "disc.reshape"(%[[FLAT]]) : {{.*}} -> tensor<?x?x8xf32, [@S0, @S1, 8]>
func.func @main(%x: tensor<?x?x8xf32>) -> tensor<?x?x8xf32> {
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %b = tensor.dim %x, %c0 : tensor<?x?x8xf32>
  %shape = shape.shape_of %x : tensor<?x?x8xf32> -> tensor<3xindex>
  %count = shape.num_elements %shape : tensor<3xindex> -> index
  %rows = arith.divui %count, %c8 : index
  %s = tensor.from_elements %rows, %c8 : tensor<2xindex>
  %flat = stablehlo.dynamic_reshape %x, %s : (tensor<?x?x8xf32>, tensor<2xindex>) -> tensor<?x8xf32>
  %l = arith.divui %rows, %b : index
  %t = tensor.from_elements %b, %l, %c8 : tensor<3xindex>
  %y = stablehlo.dynamic_reshape %flat, %t : (tensor<?x8xf32>, tensor<3xindex>) -> tensor<?x?x8xf32>
  return %y : tensor<?x?x8xf32>
}

// -----
// Conditions under which the front end made the program: one is proved, the others stay, facts among them or not.
// CHECK-LABEL: module attributes {disc.decisions = {checked = 4 : i64, layout = 2 : i64, proved = 1 : i64}
// CHECK: divisor = 2 : i64, min = 0 : i64, source = "arg0.0", sym_name = "S0"
// CHECK: "disc.relation"() {lhs = "min(S0, S1)", rhs = "S1"}
// CHECK-NEXT: "disc.condition"() {expr = "mod(S0, 2) == 0", why = "decided at model.py:3"}
// CHECK-NEXT: "disc.condition"() {expr = "40 >= S1", why = "decided at model.py:4"}
// CHECK-NEXT: "disc.condition"() {expr = "S0 >= S1", why = "decided at model.py:5"}
// CHECK-NEXT: "disc.condition"() {expr = "S0 == 7 or S1 != 3"}
// CHECK-NEXT: func.func @main
module attributes {disc.symbols = {s0 = {min = 0 : i64}, s1 = {min = 0 : i64, max = 40 : i64}}, disc.layout_decisions = 2 : i64, disc.conditions = [
  {expr = "mod(s0, 2) == 0", why = "decided at model.py:3"}, {expr = "40 >= s1", why = "decided at model.py:4"},
  {expr = "s0 >= s1", why = "decided at model.py:5"}, {expr = "s0 + s1 + 1 != 0"}, {expr = "s0 == 7 or s1 != 3"}]} {
  func.func @main(%x: tensor<?x?xf32> {disc.dims = ["s0", "s1"]}) -> tensor<?x?xf32> {
    %y = stablehlo.negate %x : tensor<?x?xf32>
    return %y : tensor<?x?xf32>
  }
}

// -----
// A size that a kernel computes is a base symbol, with its bound as a relation; what it is as data, and arithmetic on it, need no op.
// CHECK-LABEL: module attributes
// CHECK: "disc.symbolic_dim"() {{.*}}source = "arg0.0", sym_name = "S0"
// CHECK: "disc.symbolic_dim"() {divisor = 1 : i64, min = 0 : i64, source = "kernel", sym_name = "S1"}
// CHECK: "disc.relation"() {lhs = "min(S0, S1)", rhs = "S1"}
// CHECK: expr = "S1 * 2"{{.*}}sym_name = "S2"
// CHECK: func.func @main
// CHECK: %[[SUM:.*]] = stablehlo.reduce
// CHECK: "disc.size_of"(%[[SUM]]) {symbol = "S1", what = "the sum"}
// CHECK: "disc.iota"() {dim = 0 : i64} : () -> tensor<?xi64, [@S2]>
// CHECK: %[[VALUE:.*]] = "disc.dim_value"() {expr = "S1"}
// CHECK: return %[[VALUE]]
module attributes {disc.symbols = {s0 = {min = 0 : i64}, u0 = {min = 0 : i64}}} {
func.func @main(%x: tensor<?xi64> {disc.dims = ["s0"]}) -> (tensor<i64>, tensor<?xi64>) {
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<?xi64>, tensor<i64>) -> tensor<i64>
  %n = "disc.size_of"(%sum) {symbol = "u0", most = "s0", what = "the sum"} : (tensor<i64>) -> tensor<i64>
  %word = tensor.extract %n[] : tensor<i64>
  %size = arith.index_cast %word : i64 to index
  %twice = arith.addi %size, %size : index
  %shape = tensor.from_elements %twice : tensor<1xindex>
  %numbers = stablehlo.dynamic_iota %shape, dim = 0 : (tensor<1xindex>) -> tensor<?xi64>
  return %n, %numbers : tensor<i64>, tensor<?xi64>
}
}

// -----
// A loop: its regions become functions. What they read from outside is an operand, a constant is made anew; the condition is an i64.
// CHECK-LABEL: module {
// CHECK: %[[R:.*]]:2 = "control.while"(%{{.*}}, %{{.*}}, %{{.*}}) {body = @main_while_0_body, carried = 2 : i64, condition = @main_while_0_condition}
// CHECK: return %[[R]]#1
// CHECK: func.func private @main_while_0_condition(%[[I:[a-z0-9]+]]: tensor<i64>, %{{.*}} -> tensor<i64> {
// CHECK: %[[C:[a-z0-9]+]] = stablehlo.constant dense<3>
// CHECK: %[[P:[a-z0-9]+]] = stablehlo.compare LT, %[[I]], %[[C]]
// CHECK: %[[N:[a-z0-9]+]] = stablehlo.convert %[[P]] : (tensor<i1>) -> tensor<i64>
// CHECK: return %[[N]]
// CHECK: func.func private @main_while_0_body(%arg0: tensor<i64>, %[[A:[a-z0-9]+]]: tensor<?x4xf32, [@S0, 4]>, %[[W:[a-z0-9]+]]: tensor<?x4xf32, [@S0, 4]>)
// CHECK: stablehlo.add %[[A]], %[[W]]
func.func @main(%x: tensor<?x4xf32>, %i: tensor<i64>) -> tensor<?x4xf32> {
  %three = stablehlo.constant dense<3> : tensor<i64>
  %w = stablehlo.negate %x : tensor<?x4xf32>
  %y:2 = stablehlo.while(%k = %i, %a = %x) : tensor<i64>, tensor<?x4xf32>
    cond {
      %p = stablehlo.compare LT, %k, %three : (tensor<i64>, tensor<i64>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %j = stablehlo.multiply %k, %k : tensor<i64>
      %b = stablehlo.add %a, %w : tensor<?x4xf32>
      stablehlo.return %j, %b : tensor<i64>, tensor<?x4xf32>
    }
  return %y#1 : tensor<?x4xf32>
}

// -----
// Windows whose numbers are sizes: all up to an element is a running sum; a constant window has padding of sizes put around its source.
// CHECK-LABEL: module {
// CHECK: "disc.cumulative"(%{{.*}}) {dim = 1 : i64, kind = "sum"}
// CHECK: %[[P:.*]] = "disc.pad"(%{{.*}}, %{{.*}}) {interior = array<i64: 0, 0>, low = ["0", "S0"]}
// CHECK: "stablehlo.reduce_window"(%[[P]], %{{.*}}) <{{.*}}window_dimensions = array<i64: 1, 2>
func.func @main(%x: tensor<3x?xf32>) -> (tensor<3x?xf32>, tensor<3x?xf32>) {
  %n = stablehlo.get_dimension_size %x, dim = 1 : (tensor<3x?xf32>) -> tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %ones = stablehlo.constant dense<1> : tensor<2xi32>
  %single = stablehlo.constant dense<1> : tensor<1xi32>
  %less = stablehlo.subtract %n, %one : tensor<i32>
  %line = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %before = stablehlo.reshape %less : (tensor<i32>) -> tensor<1xi32>
  %zero = stablehlo.constant dense<0> : tensor<1xi32>
  %none = stablehlo.constant dense<0> : tensor<1x2xi32>
  %window = stablehlo.concatenate %single, %line, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %pair = stablehlo.concatenate %before, %zero, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %row = stablehlo.reshape %pair : (tensor<2xi32>) -> tensor<1x2xi32>
  %padding = stablehlo.concatenate %none, %row, dim = 0 : (tensor<1x2xi32>, tensor<1x2xi32>) -> tensor<2x2xi32>
  %a = "disc.dynamic_window"(%x, %window, %ones, %ones, %ones, %padding) {kind = "add"}
    : (tensor<3x?xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>, tensor<2x2xi32>) -> tensor<3x?xf32>
  %two = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %pair2 = stablehlo.concatenate %line, %zero, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %row2 = stablehlo.reshape %pair2 : (tensor<2xi32>) -> tensor<1x2xi32>
  %padding2 = stablehlo.concatenate %none, %row2, dim = 0 : (tensor<1x2xi32>, tensor<1x2xi32>) -> tensor<2x2xi32>
  %b = "disc.dynamic_window"(%x, %two, %ones, %ones, %ones, %padding2) {kind = "maximum"}
    : (tensor<3x?xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>, tensor<2x2xi32>) -> tensor<3x?xf32>
  return %a, %b : tensor<3x?xf32>, tensor<3x?xf32>
}

// -----
// Python's // and % of sizes, as JAX writes them: their steps have signs that are open, what they come to has none.
// CHECK-LABEL: module {
// CHECK: "disc.dim_value"() {expr = "floordiv(S0, 3)"}
// CHECK: "disc.dim_value"() {expr = "-mod(S0 + 1, 3) + 2"}
func.func @main(%x: tensor<?x?xf32>) -> (tensor<i64>, tensor<i64>) {
  %n32 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x?xf32>) -> tensor<i32>
  %n = stablehlo.convert %n32 : (tensor<i32>) -> tensor<i64>
  %three = stablehlo.constant dense<3> : tensor<i64>
  %one = stablehlo.constant dense<1> : tensor<i64>
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %q = stablehlo.divide %n, %three : tensor<i64>
  %r = stablehlo.remainder %n, %three : tensor<i64>
  %sn = stablehlo.sign %n : tensor<i64>
  %s3 = stablehlo.sign %three : tensor<i64>
  %differ = stablehlo.compare NE, %sn, %s3 : (tensor<i64>, tensor<i64>) -> tensor<i1>
  %rest = stablehlo.compare NE, %r, %zero : (tensor<i64>, tensor<i64>) -> tensor<i1>
  %both = stablehlo.and %differ, %rest : tensor<i1>
  %less = stablehlo.subtract %q, %one : tensor<i64>
  %floor = stablehlo.select %both, %less, %q : tensor<i1>, tensor<i64>
  %minus = stablehlo.constant dense<-2> : tensor<i64>
  %m = stablehlo.subtract %minus, %n : tensor<i64>
  %t = stablehlo.remainder %m, %three : tensor<i64>
  %below = stablehlo.compare LT, %t, %zero : (tensor<i64>, tensor<i64>) -> tensor<i1>
  %never = stablehlo.compare LT, %three, %zero : (tensor<i64>, tensor<i64>) -> tensor<i1>
  %other = stablehlo.compare NE, %below, %never : (tensor<i1>, tensor<i1>) -> tensor<i1>
  %some = stablehlo.compare NE, %t, %zero : (tensor<i64>, tensor<i64>) -> tensor<i1>
  %step = stablehlo.and %other, %some : tensor<i1>
  %up = stablehlo.add %t, %three : tensor<i64>
  %mod = stablehlo.select %step, %up, %t : tensor<i1>, tensor<i64>
  return %floor, %mod : tensor<i64>, tensor<i64>
}

// -----
// Windows have a dim of their own; that they lie within the source is a condition where it is not known.
// CHECK-LABEL: module attributes
// CHECK: "disc.condition"() {expr = "11 <= S0"
// CHECK: "disc.unfold"(%{{.*}}) {dim = 0 : i64, step = 2 : i64} : (tensor<?x4xf32, [@S0, 4]>) -> tensor<5x4x3xf32, [5, 4, 3]>
func.func @main(%x: tensor<?x4xf32>) -> tensor<5x4x3xf32> {
  %sizes = arith.constant dense<[5, 4, 3]> : tensor<3xindex>
  %y = "disc.dynamic_unfold"(%x, %sizes) {dim = 0 : i64, step = 2 : i64} : (tensor<?x4xf32>, tensor<3xindex>) -> tensor<5x4x3xf32>
  return %y : tensor<5x4x3xf32>
}
