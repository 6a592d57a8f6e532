def check_inputs(signature, inputs):
    return inputs


def check_outputs(signature, names):
    return list(names or signature.outputs)
